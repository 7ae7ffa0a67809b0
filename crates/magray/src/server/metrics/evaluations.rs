//! What critics do: evaluations by what was decided, verdicts by critic, and how long they took.
//! Critics are those of the settings: a client cannot make up another.

use metrics::{counter, describe_counter, describe_histogram, histogram};

use super::Metrics;
use crate::critics::{Decision, Report, Status};

/// Counters start at 0, so that Prometheus sees a first failure as an increase.
pub(super) fn start<'a>(critics: impl Iterator<Item = &'a str>) {
    describe_counter!("magray_evaluations_total", "Texts that critics evaluated, by what was decided.");
    describe_counter!("magray_critic_verdicts_total", "Texts that a critic was asked about, by what became of it.");
    describe_histogram!("magray_critic_verdict_seconds", "From the beginning of an evaluation to a critic's verdict.");
    for decision in Decision::ALL {
        counter!("magray_evaluations_total", "decision" => decision.word()).absolute(0);
    }
    for critic in critics {
        for status in Status::ALL {
            verdicts(critic, status).absolute(0);
        }
    }
}

fn verdicts(critic: &str, status: Status) -> metrics::Counter {
    counter!("magray_critic_verdicts_total", "critic" => critic.to_owned(), "status" => status.word())
}

impl Metrics {
    pub(crate) fn evaluated(&self, report: &Report) {
        self.with(|| {
            counter!("magray_evaluations_total", "decision" => report.aggregate.decision.word()).increment(1);
            for critic in &report.critics {
                verdicts(&critic.name, critic.status).increment(1);
                if critic.status == Status::Judged {
                    let seconds = histogram!("magray_critic_verdict_seconds", "critic" => critic.name.clone());
                    seconds.record(critic.latency_ms / 1e3);
                }
            }
        });
    }
}
