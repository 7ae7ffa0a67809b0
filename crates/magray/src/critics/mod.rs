//! Critics: language models judge a text side by side, each by its own question; their scores become one.
//! Knows no API, prints nothing, and finds no precedents: it is given them.

mod aggregate;
mod panel;
mod precedents;
mod prompt;
mod report;
mod schema;
mod together;

pub(crate) use self::{
    aggregate::Decision,
    panel::{Answered, FoundModel, Judging, Models, Panel},
    precedents::{PRECEDENTS, PRECEDENTS_MAX, Precedent, case_fields, case_id},
    report::{CriticReport, Report, Status},
};
