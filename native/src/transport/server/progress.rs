//! How far a connection is, and until when it may stay so.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::sync::Notify;

use super::{Bounds, Counted, Stage};

/// What a connection is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// A head is awaited, the first or one that has begun, since this time.
    Head(Instant),
    /// An answer was given at this time, and nothing came since.
    Idle(Instant),
    /// A request is being answered.
    Busy,
    /// Nothing is read or answered any more.
    Ending,
}

/// One connection's progress; its parts note it, its driver reads it.
pub(super) struct Progress {
    noted: Mutex<Noted>,
    /// Told when the connection has to be cut at once.
    pub(super) cut: Notify,
}

struct Noted {
    phase: Phase,
    blocked: Option<Instant>,
    ended: bool,
    shut: bool,
    counted: Option<Counted>,
}

impl Progress {
    pub(super) fn new(counted: Counted) -> Self {
        let noted = Noted {
            phase: Phase::Head(Instant::now()),
            blocked: None,
            ended: false,
            shut: false,
            counted: Some(counted),
        };
        Self { noted: Mutex::new(noted), cut: Notify::new() }
    }

    /// A request's head is there.
    pub(super) fn begun(&self) {
        self.lock().phase = Phase::Busy;
    }

    /// An answer is written, but for what the client has yet to take.
    pub(super) fn answered(&self) {
        let mut noted = self.lock();
        if noted.phase == Phase::Busy {
            noted.phase = Phase::Idle(Instant::now());
        }
    }

    /// Something was read; nothing, where the client has sent its last byte.
    pub(super) fn read(&self, bytes: usize) {
        let mut noted = self.lock();
        noted.ended |= bytes == 0;
        if matches!(noted.phase, Phase::Idle(_)) {
            noted.phase = Phase::Head(Instant::now());
        }
    }

    /// The client takes nothing at the moment.
    pub(super) fn blocked(&self) {
        self.lock().blocked.get_or_insert_with(Instant::now);
    }

    /// The client took something.
    pub(super) fn written(&self) {
        self.lock().blocked = None;
    }

    /// The last answer is written.
    pub(super) fn shut(&self) {
        let mut noted = self.lock();
        noted.phase = Phase::Ending;
        noted.shut = true;
        noted.counted = None;
    }

    /// Whether the last answer is written and the client may be sending still.
    pub(super) fn lingers(&self) -> bool {
        let noted = self.lock();
        noted.shut && !noted.ended
    }

    /// Whether a request is being answered.
    pub(super) fn is_busy(&self) -> bool {
        self.lock().phase == Phase::Busy
    }

    /// The connection goes on as something else than HTTP; its count is handed over.
    pub(super) fn handed_over(&self) -> Option<Counted> {
        let mut noted = self.lock();
        noted.phase = Phase::Ending;
        noted.counted.take()
    }

    /// Until when the connection may stay as it is; None for as long as it likes.
    pub(super) fn deadline(&self, bounds: &Bounds, stage: Stage) -> Option<Instant> {
        let noted = self.lock();
        if let Some(since) = noted.blocked {
            return Some(since + bounds.send);
        }
        match (noted.phase, stage) {
            (Phase::Busy | Phase::Ending, _) => None,
            (Phase::Head(since), Stage::Stopping(at)) => Some((since.max(at) + bounds.settle).min(since + bounds.head)),
            (Phase::Head(since), _) => Some(since + bounds.head),
            (Phase::Idle(since), Stage::Stopping(_)) => Some(since + bounds.settle),
            (Phase::Idle(since), _) => Some(since + bounds.idle),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Noted> {
        self.noted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::{Noted, Phase, Progress};
    use crate::transport::server::{Bounds, Stage};

    const BOUNDS: Bounds = Bounds {
        head: Duration::from_secs(10),
        idle: Duration::from_secs(20),
        send: Duration::from_secs(30),
        settle: Duration::from_secs(1),
        linger: Duration::from_secs(2),
    };

    fn at(phase: Phase, blocked: Option<Instant>, stage: Stage) -> Option<Instant> {
        let noted = Noted { phase, blocked, ended: false, shut: false, counted: None };
        Progress { noted: noted.into(), cut: tokio::sync::Notify::new() }.deadline(&BOUNDS, stage)
    }

    #[test]
    fn each_phase_has_its_own_deadline() {
        let since = Instant::now();
        let later = |seconds| Some(since + Duration::from_secs(seconds));
        assert_eq!(at(Phase::Head(since), None, Stage::Open), later(10));
        assert_eq!(at(Phase::Idle(since), None, Stage::Leaving), later(20));
        assert_eq!(at(Phase::Busy, None, Stage::Stopping(since)), None);
        assert_eq!(at(Phase::Busy, Some(since), Stage::Open), later(30));
    }

    #[test]
    fn a_server_that_stops_gives_idle_connections_a_second() {
        let since = Instant::now();
        let stopping = Stage::Stopping(since + Duration::from_secs(5));
        let later = |seconds| Some(since + Duration::from_secs(seconds));
        assert_eq!(at(Phase::Head(since), None, stopping), later(6));
        assert_eq!(at(Phase::Idle(since), None, stopping), later(1));
        assert_eq!(at(Phase::Idle(since + Duration::from_secs(7)), None, stopping), later(8));
    }
}
