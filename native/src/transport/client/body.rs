//! Takes the body of an answer out of its framing. Pure.

use super::head::{Framing, Malformed};

/// Bytes of a chunk's size line, and of all trailers.
const MAX_LINE: usize = 16 * 1024;
const MAX_SIZE_DIGITS: u8 = 15;

/// Fed the bytes after a head, in any pieces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BodyDecoder {
    Length(u64),
    Chunked(Chunk),
    Close,
    Ended,
}

/// Where in a chunked body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Chunk {
    Size {
        size: u64,
        digits: u8,
    },
    /// Within a size line, after the digits.
    Extension {
        size: u64,
        seen: usize,
    },
    SizeEnd {
        size: u64,
    },
    Data(u64),
    DataReturn,
    DataEnd,
    /// At the beginning of a line.
    Trailer {
        seen: usize,
    },
    TrailerLine {
        seen: usize,
    },
    TrailerLineEnd {
        seen: usize,
    },
    End,
    Over,
}

impl BodyDecoder {
    #[must_use]
    pub fn new(framing: Framing) -> Self {
        match framing {
            Framing::Length(0) => Self::Ended,
            Framing::Length(length) => Self::Length(length),
            Framing::Chunked => Self::Chunked(Chunk::Size { size: 0, digits: 0 }),
            Framing::Close => Self::Close,
        }
    }

    /// Whether the body has ended.
    #[must_use]
    pub fn ended(&self) -> bool {
        *self == Self::Ended
    }

    /// Notes that the connection has ended; whether the body may end so.
    pub fn cut(&mut self) -> bool {
        if *self == Self::Close {
            *self = Self::Ended;
        }
        self.ended()
    }

    /// Adds to `body` what of it is in `data`; returns how many bytes of `data` are the answer's.
    ///
    /// # Errors
    /// These are no chunks.
    pub fn feed(&mut self, data: &[u8], body: &mut Vec<u8>) -> Result<usize, Malformed> {
        match self {
            Self::Ended => Ok(0),
            Self::Close => {
                body.extend_from_slice(data);
                Ok(data.len())
            }
            Self::Length(left) => {
                let taken = take(data, left, body);
                if *left == 0 {
                    *self = Self::Ended;
                }
                Ok(taken)
            }
            Self::Chunked(at) => {
                let taken = chunks(at, data, body)?;
                if *at == Chunk::Over {
                    *self = Self::Ended;
                }
                Ok(taken)
            }
        }
    }
}

/// Moves at most `left` bytes; returns how many.
fn take(data: &[u8], left: &mut u64, body: &mut Vec<u8>) -> usize {
    let taken = usize::try_from(*left).unwrap_or(usize::MAX).min(data.len());
    body.extend_from_slice(&data[..taken]);
    *left -= taken as u64;
    taken
}

fn chunks(at: &mut Chunk, data: &[u8], body: &mut Vec<u8>) -> Result<usize, Malformed> {
    let mut read = 0;
    while let Some(&byte) = data.get(read) {
        *at = match *at {
            Chunk::Over => break,
            Chunk::Data(mut left) => {
                read += take(&data[read..], &mut left, body);
                if left == 0 { Chunk::DataReturn } else { Chunk::Data(left) }
            }
            framing => {
                read += 1;
                step(framing, byte)?
            }
        }
    }
    Ok(read)
}

/// The state after a byte that is no data.
fn step(at: Chunk, byte: u8) -> Result<Chunk, Malformed> {
    Ok(match (at, byte) {
        (Chunk::Size { size, digits }, _) if byte.is_ascii_hexdigit() && digits < MAX_SIZE_DIGITS => {
            Chunk::Size { size: size << 4 | digit(byte), digits: digits + 1 }
        }
        (Chunk::Size { size, digits: 1.. } | Chunk::Extension { size, .. }, b'\r') => Chunk::SizeEnd { size },
        (Chunk::Size { size, digits: 1.. }, b';' | b' ' | b'\t') => Chunk::Extension { size, seen: 0 },
        (Chunk::Extension { size, seen }, _) if byte != b'\n' && seen < MAX_LINE => {
            Chunk::Extension { size, seen: seen + 1 }
        }
        (Chunk::SizeEnd { size: 0 }, b'\n') => Chunk::Trailer { seen: 0 },
        (Chunk::SizeEnd { size }, b'\n') => Chunk::Data(size),
        (Chunk::DataReturn, b'\r') => Chunk::DataEnd,
        (Chunk::DataEnd, b'\n') => Chunk::Size { size: 0, digits: 0 },
        (Chunk::Trailer { .. }, b'\r') => Chunk::End,
        (Chunk::TrailerLine { seen }, b'\r') => Chunk::TrailerLineEnd { seen },
        (Chunk::Trailer { seen } | Chunk::TrailerLine { seen }, _) if byte != b'\n' && seen < MAX_LINE => {
            Chunk::TrailerLine { seen: seen + 1 }
        }
        (Chunk::TrailerLineEnd { seen }, b'\n') => Chunk::Trailer { seen },
        (Chunk::End, b'\n') => Chunk::Over,
        _ => return Err(Malformed),
    })
}

fn digit(byte: u8) -> u64 {
    u64::from((byte as char).to_digit(16).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHUNKS: &[u8] = b"3\r\nabc\r\n0A;x=\"y\"\r\n0123456789\r\n0\r\nt: u\r\n\r\n";

    fn fed(framing: Framing, pieces: &[&[u8]]) -> Result<(Vec<u8>, usize, bool), Malformed> {
        let (mut decoder, mut body, mut taken) = (BodyDecoder::new(framing), Vec::new(), 0);
        for piece in pieces {
            taken += decoder.feed(piece, &mut body)?;
        }
        Ok((body, taken, decoder.ended()))
    }

    #[test]
    fn takes_chunks_apart_wherever_they_are_cut() {
        let whole = (b"abc0123456789".to_vec(), CHUNKS.len(), true);
        for cut in 0..=CHUNKS.len() {
            assert_eq!(fed(Framing::Chunked, &[&CHUNKS[..cut], &CHUNKS[cut..], b"HTTP"]), Ok(whole.clone()));
        }
        let single: Vec<&[u8]> = CHUNKS.chunks(1).collect();
        assert_eq!(fed(Framing::Chunked, &single), Ok(whole));
        for cut in 0..CHUNKS.len() {
            assert!(!fed(Framing::Chunked, &[&CHUNKS[..cut]]).unwrap().2);
        }
    }

    #[test]
    fn refuses_what_are_no_chunks() {
        let long = [b"1;".as_slice(), &b"x".repeat(MAX_LINE + 2)].concat();
        let trailers = [b"0\r\n".as_slice(), &b"a: b\r\n".repeat(MAX_LINE)].concat();
        let wrong: [&[u8]; 8] =
            [b"\r\n", b"g", b"1\n", b"1\r\nab", b"1\r\na\n", b"-1\r\n", b"1000000000000000\r\n", b"1 \n"];
        for data in wrong.into_iter().chain([long.as_slice(), &trailers]) {
            assert_eq!(fed(Framing::Chunked, &[data]), Err(Malformed), "{:?}", &data[..data.len().min(9)]);
        }
    }

    #[test]
    fn ends_at_its_length_or_with_the_connection() {
        assert_eq!(fed(Framing::Length(3), &[b"a", b"bcd"]), Ok((b"abc".to_vec(), 3, true)));
        assert_eq!(fed(Framing::Length(0), &[b"a"]), Ok((Vec::new(), 0, true)));
        assert_eq!(fed(Framing::Close, &[b"a", b"b"]), Ok((b"ab".to_vec(), 2, false)));
        let (mut open, mut short) = (BodyDecoder::new(Framing::Close), BodyDecoder::new(Framing::Length(1)));
        assert_eq!((open.cut(), open.ended(), short.cut()), (true, true, false));
    }
}
