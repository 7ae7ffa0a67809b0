//! The engine as a target of load.
//! Translates only: what an answer means is told elsewhere.

use std::time::{Duration, Instant};

use magray_engine::{
    Reason,
    engine::{Answer, DeviceState, DeviceStatus, DeviceView, Engine, EngineError, Incident, Moment, Work},
};

use magray_load::{DeviceNow, Done, Fault, Outcome, Target, Ticket, Vectors};

pub(super) struct EngineTarget {
    pub(super) engine: Engine,
    /// For every request.
    pub(super) deadline: Option<Duration>,
}

impl Target for EngineTarget {
    fn submit(&self, texts: Vec<Vec<u32>>, ticket: Ticket) {
        let work = Work { deadline: self.deadline, ..Work::from_ids(0, texts) };
        self.engine.submit(work, move |answer| ticket.answer(outcome(answer)));
    }

    fn devices(&self) -> Vec<DeviceNow> {
        let status = self.engine.status();
        let now = |device: &DeviceStatus| DeviceNow {
            name: device.name,
            state: word(device.schedule.state),
            pid: device.pid,
            done: done(&device.schedule),
        };
        status.devices.iter().map(now).collect()
    }

    fn incidents(&self) -> Vec<Fault> {
        let status = self.engine.status();
        // The engine counts from its start.
        let started = Instant::now() - status.uptime;
        let at = |moment: Moment| started + Duration::from_nanos(moment.as_nanos());
        let fault = |incident: &Incident| Fault {
            device: status.devices[usize::from(incident.device.0)].name,
            code: incident.code,
            noticed: at(incident.noticed),
            back: incident.served_again.map(at),
        };
        self.engine.incidents().iter().map(fault).collect()
    }
}

fn done(device: &DeviceView) -> Done {
    Done { batches: device.batches_finished, texts: device.texts_finished, busy: device.busy }
}

fn outcome(answer: Result<Answer, EngineError>) -> Outcome {
    match answer {
        Ok(answer) => Outcome::Vectors(Vectors {
            values: answer.values,
            device: answer.device,
            precision: answer.precision,
            queued: answer.queued,
            computed: answer.computed,
            replays: answer.replays,
            fallback: answer.fallback.as_ref().map(Reason::code),
        }),
        Err(error) => Outcome::Refused { code: code(&error), message: error.to_string() },
    }
}

fn code(error: &EngineError) -> &'static str {
    match error {
        EngineError::Full { .. } => "full",
        EngineError::Expired => "expired",
        EngineError::Poison => "poison",
        EngineError::Panicked => "panicked",
        EngineError::NoDevice { .. } => "no_device",
        EngineError::TooLarge => "too_large",
        EngineError::Draining => "draining",
        EngineError::NotYet { .. } => "not_yet",
        EngineError::Overruled => "overruled",
        EngineError::NoModel(_)
        | EngineError::NoText
        | EngineError::Text(_)
        | EngineError::TokenKinds { .. }
        | EngineError::NoPrompt(_) => "bad_request",
    }
}

fn word(state: DeviceState) -> String {
    match state {
        DeviceState::Starting => "starting".to_owned(),
        DeviceState::InRotation => "in rotation".to_owned(),
        DeviceState::Recovering(reason) => format!("recovering ({})", reason.code()),
        DeviceState::Resting => "resting".to_owned(),
        DeviceState::Out(reason) => format!("out ({})", reason.code()),
    }
}
