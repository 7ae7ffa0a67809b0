//! The tool by which agents let critics judge a text.
//! Stores nothing: an agent that may change collections has a tool for it.

use std::pin::pin;

use rmcp::{
    Json, Peer, RoleServer,
    handler::server::wrapper::Parameters,
    model::{ProgressNotificationParam, ProgressToken, RequestMetaObject},
    schemars::JsonSchema,
    tool, tool_router,
};
use serde::Deserialize;
use tokio::sync::watch;

use super::Tools;
use crate::{
    critics::Report,
    server::{apis::evaluate::Asked, errors::Problem, request_record::RequestRecord},
};

/// A text to evaluate.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
struct ToEvaluate {
    text: String,
    /// Names of critics of the server's settings; without it, all of them.
    #[serde(default)]
    critics: Option<Vec<String>>,
    /// A name of list_models, for critics that have no model of their own; without it, the first that generates.
    #[serde(default)]
    model: Option<String>,
    /// A name of list_collections: its documents that are most like the text are shown to the critics as precedents.
    #[serde(default)]
    collection: Option<String>,
    /// How many precedents are shown; without it, 3.
    #[serde(default)]
    #[schemars(range(max = 20))]
    precedents: Option<usize>,
    /// `high`, `normal` or `low`: which of several waiting calls goes first. Without it, normal.
    #[serde(default)]
    priority: Option<String>,
}

/// A caller that wants to know how far it is.
type Listener = (Peer<RoleServer>, ProgressToken);

#[tool_router(router = evaluate_routes, vis = "pub(super)")]
impl Tools {
    /// Lets critics (such as ethics, fairness and safety) judge a text: a score and reasons of each, one score of all, and whether
    /// the text is accepted. A critic that gave no verdict is named with the reason.
    #[tool(annotations(
        title = "Evaluate a text by critics",
        read_only_hint = true,
        destructive_hint = false,
        idempotent_hint = true,
        open_world_hint = false
    ))]
    async fn evaluate_text(
        &self,
        Parameters(asked): Parameters<ToEvaluate>,
        meta: RequestMetaObject,
        peer: Peer<RoleServer>,
    ) -> Result<Json<Report>, String> {
        let listener = meta.get_progress_token().map(|token| (peer, token));
        self.evaluate(asked, listener).await.map(Json).map_err(|problem| problem.message)
    }
}

impl Tools {
    async fn evaluate(&self, asked: ToEvaluate, listener: Option<Listener>) -> Result<Report, Problem> {
        let ToEvaluate { text, critics, model, collection, precedents, priority } = asked;
        if let Some(word) = priority.as_deref() {
            RequestRecord::current().set_priority(word.parse()?)?;
        }
        let critics = critics.unwrap_or_default();
        let total = if critics.is_empty() { self.app.critics().names().count() } else { critics.len() };
        let asked = Asked { text, critics, model, collection, precedents, stores: false };
        let (sender, mut receiver) = watch::channel(0);
        let on_done = |done| {
            sender.send_replace(done);
        };
        let mut evaluating = pin!(self.app.evaluate(asked, &on_done));
        loop {
            let ended = tokio::select! {
                report = &mut evaluating => Some(report),
                Ok(()) = receiver.changed() => None,
            };
            let done = *receiver.borrow_and_update();
            if let (Some(listener), true) = (&listener, done > 0) {
                tell(listener, done, total).await;
            }
            if let Some(report) = ended {
                return report;
            }
        }
    }
}

/// Tells a caller how many critics are done. One that cannot be told still gets its answer.
async fn tell((peer, token): &Listener, done: usize, total: usize) {
    let told = ProgressNotificationParam::new(token.clone(), done as f64).with_total(total as f64);
    let _ = peer.notify_progress(told.with_message(format!("{done} of {total} critics"))).await;
}
