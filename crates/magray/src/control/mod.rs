//! Speaks with engines that run in other processes of the same user: a socket that each of them has, and those who ask.
//! Never waits for a client longer than it said, and lets nobody of another user in.

mod client;
mod folder;
mod grade;
mod line;
mod report;
mod server;
mod subject;
#[cfg(test)]
mod tests;
mod wire;

pub(crate) use client::{AskError, Running, running};
#[cfg(test)]
pub(crate) use grade::Grade;
pub(crate) use report::{DeviceReport, EngineReport, ModelReport, PerformanceReport, PoolReport, Whereabouts};
pub(crate) use server::ControlSocket;
pub(crate) use subject::EngineSubject;
pub(crate) use wire::{Done, Idle, ModelDone, RefusalCode, Reply, Request};
