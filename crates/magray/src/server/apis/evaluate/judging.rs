//! Evaluates texts for requests: the critics of the settings, by the models of this server.
//! Knows no API. A client that leaves drops what is here, and so ends all that critics generate.

use magray_engine::DeviceName;

use crate::{
    critics::{
        Answered, FoundModel, Judging, Models, PRECEDENTS, PRECEDENTS_MAX, Precedent, Report, case_fields, case_id,
    },
    generation::{Job, WholeAnswer},
    server::{
        apis::{
            new_documents::{self, NewDocument},
            passages::{self, DocumentSearch, FoundDocument},
        },
        app::App,
        errors::Problem,
    },
};

/// A text to evaluate.
#[derive(Debug, Default)]
pub(in crate::server) struct Asked {
    pub(in crate::server) text: String,
    /// Without any, all.
    pub(in crate::server) critics: Vec<String>,
    /// The model of critics that have none of their own.
    pub(in crate::server) model: Option<String>,
    /// Where precedents are.
    pub(in crate::server) collection: Option<String>,
    pub(in crate::server) precedents: Option<usize>,
    /// Whether the evaluation becomes a case of the collection.
    pub(in crate::server) stores: bool,
}

impl App {
    /// Evaluates a text. `on_done` is told the number of critics that are done.
    pub(in crate::server) async fn evaluate(
        &self,
        asked: Asked,
        on_done: &(dyn Fn(usize) + Sync),
    ) -> Result<Report, Problem> {
        let Asked { text, critics, model, collection, precedents, stores } = asked;
        self.limits().check_texts("text", std::iter::once(text.as_str()))?;
        if text.trim().is_empty() {
            return Err(Problem::invalid("text", "the text is empty"));
        }
        let critics = self.critics().choose(&critics).map_err(|wrong| Problem::invalid("critics", wrong))?;
        let limit = precedents.unwrap_or(if collection.is_some() { PRECEDENTS } else { 0 });
        if limit > PRECEDENTS_MAX {
            let message = format!("{limit} precedents were asked for; {PRECEDENTS_MAX} may be");
            return Err(Problem::invalid("precedents", message));
        }
        let precedents = match &collection {
            None if stores => return Err(Problem::invalid("store", "a case is stored in a collection: name one")),
            None if limit > 0 => {
                return Err(Problem::invalid("precedents", "precedents are in a collection: name one"));
            }
            None => Vec::new(),
            Some(collection) => self.precedents(collection, &text, (limit, stores)).await?,
        };
        let (text, model) = (text.as_str(), model.as_deref());
        let judging = Judging { text, critics, precedents: &precedents, model, on_done };
        let (mut report, refusals) = self.critics().judge(&Served(self), &judging).await;
        self.metrics().evaluated(&report);
        if report.aggregate.formed_over.is_empty() {
            // Where all are refused, the request is.
            return match refusals.into_iter().next() {
                Some(problem) if !report.critics.is_empty() => Err(no_verdict(problem)),
                _ => Ok(report),
            };
        }
        if let Some(collection) = collection.filter(|_| stores) {
            let id = case_id(text);
            let shown = id.as_str().map(str::to_owned);
            let case = NewDocument { id: Some(id), text: text.to_owned(), fields: case_fields(&report) };
            new_documents::add(self, collection, vec![case]).await?;
            report.stored = shown;
        }
        Ok(report)
    }

    /// The cases of a collection that are most like a text. One that is not there has none, if a case is to be stored in it.
    async fn precedents(
        &self,
        collection: &str,
        text: &str,
        (limit, stores): (usize, bool),
    ) -> Result<Vec<Precedent>, Problem> {
        let name = collection.to_owned();
        let is_there = self.collections().with_all(move |all| match all.get(&name) {
            Err(magray_index::Error::NotFound { .. }) if stores => Ok(false),
            found => Ok(found.map(|_| true)?),
        });
        if !is_there.await? || limit == 0 {
            return Ok(Vec::new());
        }
        let (collection, query) = (collection.to_owned(), text.to_owned());
        let search =
            DocumentSearch { collection, query, limit, is_hybrid: Some(false), is_reranked: false, filter: None };
        let precedent = |found: FoundDocument| Precedent::of(found.id, found.score, &found.text, &found.fields);
        Ok(passages::search(self, search).await?.into_iter().map(precedent).collect())
    }
}

/// That no critic could be asked, and why the first could not.
fn no_verdict(problem: Problem) -> Problem {
    let message = format!("no critic gave a verdict: {}", problem.message);
    let param = match problem.param.as_deref() {
        // What critics are asked is made from the text.
        Some("messages") => Some("text".into()),
        _ => problem.param,
    };
    Problem { message, param, ..problem }
}

/// The models of the server.
struct Served<'a>(&'a App);

impl Models for Served<'_> {
    type Error = Problem;

    fn find(&self, name: Option<&str>) -> Result<FoundModel, Problem> {
        let number = self.0.generator(name)?;
        Ok(FoundModel { number, name: self.0.models().get(number).name.clone() })
    }

    async fn answer(
        &self,
        job: Job,
        device: Option<DeviceName>,
        begun: impl FnOnce() + Send,
    ) -> Result<Answered, Problem> {
        let bytes = job.input.bytes();
        let read = self.0.read(bytes, move |app| Ok(app.read_jobs(vec![job])?.on(device))).await?;
        let mut generating = self.0.generate(read).await?;
        begun();
        let prompt_tokens = generating.prompt_tokens();
        let answer: Option<WholeAnswer> = generating.collect().await?.pop();
        Ok(Answered { answer: answer.unwrap_or_default(), prompt_tokens })
    }
}
