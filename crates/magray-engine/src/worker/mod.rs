//! GPU workers: child processes of this program that hold a device, so that its failures cannot touch the supervisor.
//! The supervisor's side is `spawn` and what it returns, the worker's side is `serve`; neither decides anything.
//!
//! They talk over a socket, which is the worker's stdin, and share memory for token ids and answers. A worker ends with
//! its supervisor, however that ends: the system closes the socket, and a thread of the worker waits for just that.

mod batches;
mod channel;
mod confine;
mod handle;
mod holdings;
mod jobs;
mod message;
mod process;
mod receiver;
mod sandbox;
mod sandbox_trial;
mod serve;
mod serve_error;
mod slots;
mod spawn;
mod spec;
mod survey;
mod transfers;
mod vector_window;
mod vectors;
mod wire;

pub use channel::ChannelError;
pub use handle::{Offer, Untold, Work, WorkerGone, WorkerHandle};
pub use message::{Arrived, FromWorker, HeldShape, TurnStep, VectorOrder, VectorReply, VectorSearch};
pub use process::{Exit, KillSwitch};
pub use receiver::WorkerReceiver;
pub use sandbox::{Attempt, Outcome};
pub use sandbox_trial::try_sandbox;
pub use serve::serve;
pub use serve_error::ServeError;
pub use spawn::{SpawnError, spawn};
pub use spec::{Form, Ready, Sandbox, WorkerSpec};
pub use survey::survey;
pub use vector_window::VectorWindow;
