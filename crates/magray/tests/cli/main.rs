//! What users see of the real binary: answers, messages and exit codes.
//! Reaches no network: the hub's address leads nowhere and there is no pip.

mod bench;
mod chat;
mod config;
mod control;
mod demo;
mod embed;
mod evaluate;
mod generate;
mod gpu;
mod health;
mod help;
mod hostile_folder;
mod index;
mod pty;
mod refusals;
mod remote;
mod rerank;
mod resume;
mod runner;
mod store;
mod token_thief;
mod top;
