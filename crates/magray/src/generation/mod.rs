//! Generates text for all who ask: the commands and every API of the server.
//! Knows no API, prints nothing, and decides nothing about devices.

mod answer;
mod job;
mod side_by_side;
mod template;
mod whole;

pub(crate) use self::{
    answer::{AnswerEnd, AnswerEvent, AnswerToken, Finish, Part},
    job::{ANSWERS_MAX, ChatInput, Job, JobError, JobInput, Prepared, TokensMax, ToolChoice, Urgency, new_seed},
    side_by_side::{AnswersEvent, SideBySide},
    template::chat_template,
    whole::WholeAnswer,
};
