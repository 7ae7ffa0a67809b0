//! Control of engines in other processes of the same user: the socket of each engine, and its clients.
//! Every wait is bounded, and clients of other users are refused.

mod client;
mod folder;
mod grade;
mod line;
mod report;
mod server;
mod snapshot;
mod subject;
#[cfg(test)]
mod tests;
mod wire;

pub(crate) use client::{AskError, Running, running};
#[cfg(test)]
pub(crate) use grade::Grade;
#[cfg(test)]
pub(crate) use report::LayersReport;
pub(crate) use report::{
    Cleared, ClearedDevice, DeviceReport, DeviceResidency, EngineReport, ModelReport, PerformanceReport, PoolReport,
};
pub(crate) use server::ControlSocket;
pub(crate) use snapshot::Snapshot;
pub(crate) use subject::{Change, Controlled, EngineSubject, ServedChange};
pub(crate) use wire::{Done, Idle, ModelDone, Refusal, RefusalCode, Reply, Request};
