//! When a worker last did something, and so how long it was waited for when it is ended by force.
//! For people: the machine decides by its own times.

use magray_core::schedule::{Ending, KillCause};
use std::time::{Duration, Instant};

/// The last signs of one worker.
#[derive(Debug)]
pub(super) struct Signs {
    /// It was started, or said something.
    heard: Instant,
    /// It got its only batch, or gave one back.
    computed: Instant,
    /// It was told to load or to offload a model.
    moved: Instant,
    /// Why it was ended by force.
    ended_for: Option<String>,
}

impl Default for Signs {
    fn default() -> Self {
        let now = Instant::now();
        Self { heard: now, computed: now, moved: now, ended_for: None }
    }
}

impl Signs {
    pub(super) fn hear(&mut self) {
        self.heard = Instant::now();
    }

    pub(super) fn compute(&mut self) {
        self.computed = Instant::now();
    }

    pub(super) fn move_model(&mut self) {
        self.moved = Instant::now();
    }

    /// It is ended by force now.
    pub(super) fn end_for(&mut self, cause: KillCause) {
        let waited = match cause {
            KillCause::Overdue => Some(self.computed),
            KillCause::Silent | KillCause::StartOverdue => Some(self.heard),
            KillCause::LoadOverdue => Some(self.moved),
            KillCause::Sticky | KillCause::RuledOut => None,
        };
        self.ended_for = Some(told(cause, waited.map(|since| since.elapsed())));
    }

    /// Why it was ended by force, if it was.
    pub(super) fn why(&self, ending: Ending) -> Option<String> {
        self.ended_for.clone().filter(|_| ending == Ending::Ordered)
    }
}

fn told(cause: KillCause, waited: Option<Duration>) -> String {
    let what = match cause {
        KillCause::Overdue => "hung",
        KillCause::Silent => "no heartbeat",
        KillCause::Sticky => "it can compute nothing any more",
        KillCause::RuledOut => "its device may not be used",
        KillCause::StartOverdue => "not ready",
        KillCause::LoadOverdue => "a model was not moved",
    };
    waited.map_or_else(|| what.to_owned(), |waited| format!("{what}, {:.1} s", waited.as_secs_f64()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_that_hung_was_ended_without_a_reason() {
        assert_eq!(told(KillCause::Overdue, Some(Duration::from_millis(1_040))), "hung, 1.0 s");
        let mut signs = Signs::default();
        assert_eq!(signs.why(Ending::Ordered), None, "the engine ends");
        signs.end_for(KillCause::RuledOut);
        assert_eq!(signs.why(Ending::Ordered).as_deref(), Some("its device may not be used"));
        assert_eq!(signs.why(Ending::Killed), None);
    }
}
