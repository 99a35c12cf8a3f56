//! Splits what the client of a `WebSocket` sends (RFC 6455) into messages that may be taken out, and all else.

use bytes::{Buf, BytesMut};

/// A whole message in one frame: FIN, no reserved bits, binary.
const WHOLE_BINARY: u8 = 0x82;
const MASKED: u8 = 0x80;
/// Longer messages are passed on: whoever takes one out is to be quick.
pub const MOST_BYTES: usize = 16 * 1024;

/// A part of what was received, in order.
#[derive(Debug, PartialEq, Eq)]
pub enum Part {
    /// To be passed on as it is.
    Passed(BytesMut),
    /// A whole binary message: the frame as it came, and what it says.
    Message { frame: BytesMut, payload: Vec<u8> },
}

/// The frames of one client.
#[derive(Debug, Default)]
pub struct Messages {
    /// Bytes of the present frame that are still to be passed on.
    passing: u64,
    /// Messages whose last frame was passed on, or its beginning.
    pub passed: u64,
}

impl Messages {
    /// Takes the next part off what was received; None where more has to come first.
    pub fn next(&mut self, received: &mut BytesMut) -> Option<Part> {
        if self.passing == 0 {
            let head = Head::read(received)?;
            if head.may_be_taken() {
                let whole = head.length + usize::try_from(head.payload).unwrap_or(usize::MAX);
                return (received.len() >= whole).then(|| head.message(received.split_to(whole)));
            }
            self.passing = head.payload.saturating_add(head.length as u64);
            self.passed += u64::from(head.ends_message());
        }
        let here = usize::try_from(self.passing).map_or(received.len(), |left| left.min(received.len()));
        self.passing -= here as u64;
        (here > 0).then(|| Part::Passed(received.split_to(here)))
    }
}

struct Head {
    first: u8,
    mask: Option<[u8; 4]>,
    /// Bytes of the head itself.
    length: usize,
    payload: u64,
}

impl Head {
    /// None where more bytes have to come.
    fn read(received: &[u8]) -> Option<Self> {
        let mut rest = received;
        let (first, second) = (rest.try_get_u8().ok()?, rest.try_get_u8().ok()?);
        let payload = match second & !MASKED {
            126 => u64::from(rest.try_get_u16().ok()?),
            127 => rest.try_get_u64().ok()?,
            short => u64::from(short),
        };
        let mask = if second & MASKED == 0 { None } else { Some(rest.try_get_u32().ok()?.to_be_bytes()) };
        Some(Self { first, mask, length: received.len() - rest.len(), payload })
    }

    /// Whether it has FIN and is no control frame.
    fn ends_message(&self) -> bool {
        self.first & 0x88 == 0x80
    }

    fn may_be_taken(&self) -> bool {
        self.first == WHOLE_BINARY && self.mask.is_some() && self.payload <= MOST_BYTES as u64
    }

    fn message(&self, frame: BytesMut) -> Part {
        let mask = self.mask.unwrap_or_default().into_iter().cycle();
        let payload = frame[self.length..].iter().zip(mask).map(|(byte, mask)| byte ^ mask).collect();
        Part::Message { frame, payload }
    }
}

#[cfg(test)]
mod tests {
    use super::{BytesMut, MOST_BYTES, Messages, Part};

    const MASK: [u8; 4] = [1, 2, 3, 250];

    fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
        let mut out = vec![first];
        match payload.len() {
            short @ 0..126 => out.push(0x80 | u8::try_from(short).unwrap()),
            long => {
                out.push(0x80 | 127);
                out.extend((long as u64).to_be_bytes());
            }
        }
        out.extend(MASK);
        out.extend(payload.iter().zip(MASK.into_iter().cycle()).map(|(byte, mask)| byte ^ mask));
        out
    }

    /// All messages, all bytes passed on, and the messages in these, when the input comes in pieces of `size`.
    fn split(input: &[u8], size: usize) -> (Vec<Vec<u8>>, Vec<u8>, u64) {
        let (mut messages, mut received) = (Messages::default(), BytesMut::new());
        let (mut taken, mut passed) = (Vec::new(), Vec::new());
        for piece in input.chunks(size) {
            received.extend_from_slice(piece);
            while let Some(part) = messages.next(&mut received) {
                match part {
                    Part::Passed(bytes) => passed.extend_from_slice(&bytes),
                    Part::Message { payload, .. } => taken.push(payload),
                }
            }
        }
        passed.extend_from_slice(&received);
        (taken, passed, messages.passed)
    }

    #[test]
    fn whole_binary_messages_are_told_and_all_else_is_passed_on_however_it_is_cut() {
        let (delta, large) = (vec![7; 300], vec![9; MOST_BYTES + 1]);
        let others = [frame(0x89, b"ping"), frame(0x02, b"begun"), frame(0x80, b"ended"), frame(0x82, &large)];
        let mut input = frame(0x82, b"first");
        for other in &others {
            input.extend(other);
            input.extend(frame(0x82, &delta));
        }
        for size in [1, 2, 3, 7, 100, 4096, input.len()] {
            let (taken, passed, count) = split(&input, size);
            assert_eq!(taken.len(), 5, "{size}");
            assert_eq!(taken[0], b"first");
            assert!(taken[1..].iter().all(|message| *message == delta));
            assert_eq!(passed, others.concat());
            assert_eq!(count, 2, "a message in two frames, and a large one");
        }
    }

    #[test]
    fn a_message_comes_with_the_frame_that_it_came_in() {
        let input = frame(0x82, b"abc");
        let mut received = BytesMut::from(&input[..]);
        let part = Messages::default().next(&mut received);
        assert_eq!(part, Some(Part::Message { frame: BytesMut::from(&input[..]), payload: b"abc".to_vec() }));
        assert!(received.is_empty());
    }

    #[test]
    fn an_unmasked_frame_and_a_length_beyond_all_bounds_are_passed_on() {
        let mut input = vec![0x82, 3, 1, 2, 3, 0x82, 0xFF];
        input.extend(u64::MAX.to_be_bytes());
        input.extend([0; 50]);
        assert_eq!(split(&input, 5), (Vec::new(), input, 2));
    }
}
