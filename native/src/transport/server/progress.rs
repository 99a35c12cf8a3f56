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

/// What has to be done with a connection when its time is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Due {
    /// Tell the client to ask nothing more on it (HTTP/2).
    Leave,
    Cut,
}

/// One connection's progress; its parts note it, its driver reads it.
pub(super) struct Progress {
    noted: Mutex<Noted>,
    /// Told when the connection has to be cut at once.
    pub(super) cut: Notify,
    /// Told when something may be due that was not.
    pub(super) begins: Notify,
}

struct Noted {
    phase: Phase,
    /// Requests under way.
    open: usize,
    /// HTTP/2 is spoken: requests go on beside each other.
    multiplexed: bool,
    /// Since when the client knows that it is to ask nothing more.
    left: Option<Instant>,
    blocked: Option<Instant>,
    ended: bool,
    shut: bool,
    counted: Option<Counted>,
}

impl Progress {
    pub(super) fn new(counted: Counted) -> Self {
        let noted = Noted {
            phase: Phase::Head(Instant::now()),
            open: 0,
            multiplexed: false,
            left: None,
            blocked: None,
            ended: false,
            shut: false,
            counted: Some(counted),
        };
        Self { noted: Mutex::new(noted), cut: Notify::new(), begins: Notify::new() }
    }

    /// HTTP/2 is spoken from now on.
    pub(super) fn multiplexed(&self) {
        self.lock().multiplexed = true;
    }

    /// The client was told to ask nothing more.
    pub(super) fn left(&self) {
        self.lock().left.get_or_insert_with(Instant::now);
    }

    /// A request's head is there.
    pub(super) fn begun(&self) {
        let mut noted = self.lock();
        if noted.multiplexed && noted.phase != Phase::Busy {
            self.begins.notify_one();
        }
        noted.open += 1;
        noted.phase = Phase::Busy;
    }

    /// An answer is written, but for what the client has yet to take.
    pub(super) fn answered(&self) {
        let mut noted = self.lock();
        noted.open = noted.open.saturating_sub(1);
        if noted.phase == Phase::Busy && noted.open == 0 {
            noted.phase = Phase::Idle(Instant::now());
        }
    }

    /// Something was read; nothing, where the client has sent its last byte.
    pub(super) fn read(&self, bytes: usize) {
        let mut noted = self.lock();
        noted.ended |= bytes == 0;
        if matches!(noted.phase, Phase::Idle(_)) && !noted.multiplexed {
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

    /// Until when the connection may stay as it is, and what then; None for as long as it likes.
    pub(super) fn due(&self, bounds: &Bounds, stage: Stage) -> Option<(Instant, Due)> {
        let noted = self.lock();
        if let Some(since) = noted.blocked {
            return Some((since + bounds.send, Due::Cut));
        }
        match noted.phase {
            Phase::Busy if noted.multiplexed && stage != Stage::Open && noted.left.is_none() => {
                Some((Instant::now(), Due::Leave))
            }
            Phase::Busy | Phase::Ending => None,
            Phase::Head(since) => Some((head_until(since, bounds, stage), Due::Cut)),
            Phase::Idle(since) if noted.multiplexed => Some(noted.idle_until(since, bounds, stage)),
            Phase::Idle(since) if matches!(stage, Stage::Stopping(_)) => Some((since + bounds.settle, Due::Cut)),
            Phase::Idle(since) => Some((since + bounds.idle, Due::Cut)),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Noted> {
        self.noted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn head_until(since: Instant, bounds: &Bounds, stage: Stage) -> Instant {
    match stage {
        Stage::Stopping(at) => (since.max(at) + bounds.settle).min(since + bounds.head),
        _ => since + bounds.head,
    }
}

impl Noted {
    /// For HTTP/2: its last answers may be on their way still, where the client takes its time.
    fn idle_until(&self, since: Instant, bounds: &Bounds, stage: Stage) -> (Instant, Due) {
        match (self.left, stage) {
            (None, Stage::Open) => (since + bounds.idle, Due::Leave),
            (None, _) => (Instant::now(), Due::Leave),
            (Some(left), Stage::Stopping(at)) => (since.max(left).max(at) + bounds.settle, Due::Cut),
            (Some(left), _) => (since.max(left) + bounds.send, Due::Cut),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use tokio::sync::Notify;

    use super::{Due, Noted, Phase, Progress};
    use crate::transport::server::{Bounds, Stage};

    const BOUNDS: Bounds = Bounds {
        head: Duration::from_secs(10),
        idle: Duration::from_secs(20),
        send: Duration::from_secs(30),
        settle: Duration::from_secs(1),
        linger: Duration::from_secs(2),
    };

    fn at(phase: Phase, blocked: Option<Instant>, stage: Stage) -> Option<Instant> {
        let noted = Noted { blocked, ..noted(phase) };
        due(noted, stage).map(|(at, due)| {
            assert_eq!(due, Due::Cut);
            at
        })
    }

    fn noted(phase: Phase) -> Noted {
        let (blocked, left, counted) = (None, None, None);
        Noted { phase, open: 0, multiplexed: false, left, blocked, ended: false, shut: false, counted }
    }

    fn due(noted: Noted, stage: Stage) -> Option<(Instant, Due)> {
        Progress { noted: noted.into(), cut: Notify::new(), begins: Notify::new() }.due(&BOUNDS, stage)
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

    #[test]
    fn connections_of_http2_are_told_before_they_are_cut() {
        let since = Instant::now();
        let later = |seconds| since + Duration::from_secs(seconds);
        let told = |phase, stage, left| due(Noted { multiplexed: true, left, ..noted(phase) }, stage);
        assert_eq!(told(Phase::Idle(since), Stage::Open, None), Some((later(20), Due::Leave)));
        assert_eq!(told(Phase::Idle(since), Stage::Open, Some(later(20))), Some((later(50), Due::Cut)));
        assert_eq!(told(Phase::Idle(since), Stage::Stopping(later(5)), Some(since)), Some((later(6), Due::Cut)));
        assert_eq!(told(Phase::Head(since), Stage::Open, None), Some((later(10), Due::Cut)));
        assert_eq!(told(Phase::Busy, Stage::Open, None), None);
        assert_eq!(told(Phase::Busy, Stage::Leaving, Some(since)), None);
        for phase in [Phase::Busy, Phase::Idle(since)] {
            assert_eq!(told(phase, Stage::Leaving, None).map(|(_, due)| due), Some(Due::Leave));
        }
    }
}
