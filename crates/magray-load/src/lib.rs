//! Sends: requests as many callers do, by a schedule or as clients that wait, and checks every answer.
//! Knows no engine and no HTTP: what answers is a [`Target`]. Prints nothing and reads no settings.
#![forbid(unsafe_code)]

mod arrivals;
mod drive;
mod latency;
mod pool;
mod tally;
mod target;

pub use drive::{Load, Outcomes, Poison, Sending, Underway, drive};
pub use latency::{Latencies, ms, short};
pub use pool::{Pool, Span, Tolerance, TooAlike, Wrong, worst_cosine};
pub use tally::{Counts, InTime, Recent, Share, Tally, Timeline};
pub use target::{Arrived, DeviceNow, Done, Fault, Outcome, Request, Target, Ticket, Vectors};
