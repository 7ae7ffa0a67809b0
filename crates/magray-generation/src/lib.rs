//! Generates text for all who ask: the commands, every API of the server, and Python.
//! Knows no API, prints nothing, and decides nothing about devices.
#![forbid(unsafe_code)]

mod answer;
mod job;
mod passages;
mod side_by_side;
mod template;
mod whole;

pub use self::{
    answer::{AnswerEnd, AnswerEvent, AnswerStream, AnswerToken, Finish, Part, Times},
    job::{ANSWERS_MAX, ChatInput, Job, JobError, JobInput, Prepared, TokensMax, ToolChoice, Urgency, new_seed},
    passages::{PASSAGES, cut, with_passages},
    side_by_side::{AnswersEvent, SideBySide},
    template::chat_template,
    whole::WholeAnswer,
};
