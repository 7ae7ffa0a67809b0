//! The critics of the settings, asked side by side about one text.
//! Generates nothing itself: commands and server each have their models.

use std::{
    fmt,
    sync::atomic::{AtomicUsize, Ordering},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use magray_engine::{
    DeviceName,
    decoder::{Constraint, Sampling},
};
use tokio::{sync::watch, time::timeout};

use super::{
    aggregate::{Ballot, aggregate},
    precedents::Precedent,
    prompt::Matter,
    report::{CriticReport, PrecedentReport, Report, Status},
    schema::{Verdict, VerdictSchema},
    together,
};
use crate::{
    config::{Config, ConfigError, CriticSettings},
    generation::{AnswerEnd, ChatInput, Finish, Job, JobInput, TokensMax, WholeAnswer},
};

/// Who judges, and when a text is accepted.
#[derive(Clone, Debug)]
pub(crate) struct Panel {
    critics: Vec<Critic>,
    accept_from: f64,
}

#[derive(Clone, Debug)]
struct Critic {
    settings: CriticSettings,
    schema: VerdictSchema,
}

/// A model by its number, and the device that it has to compute on.
type Place = (usize, Option<DeviceName>);

/// A text before critics.
pub(crate) struct Judging<'a> {
    pub(crate) text: &'a str,
    /// Their places in the panel.
    pub(crate) critics: Vec<usize>,
    pub(crate) precedents: &'a [Precedent],
    /// The model of critics that have none of their own.
    pub(crate) model: Option<&'a str>,
    /// Told the number of critics that are done, after each.
    pub(crate) on_done: &'a (dyn Fn(usize) + Sync),
}

/// What generates for critics.
pub(crate) trait Models: Sync {
    /// Why it does not.
    type Error: fmt::Display + Send;

    /// The model of this name, or the usual one.
    fn find(&self, name: Option<&str>) -> Result<FoundModel, Self::Error>;

    /// Answers a job whole, on this device or where its model is computed. `begun` is called when the prompt was read.
    fn answer(
        &self,
        job: Job,
        device: Option<DeviceName>,
        begun: impl FnOnce() + Send,
    ) -> impl Future<Output = Result<Answered, Self::Error>> + Send;
}

#[derive(Clone, Debug)]
pub(crate) struct FoundModel {
    pub(crate) number: usize,
    pub(crate) name: String,
}

pub(crate) struct Answered {
    pub(crate) answer: WholeAnswer,
    pub(crate) prompt_tokens: usize,
}

/// Why a critic gave no verdict.
pub(crate) enum Missing<E> {
    Late(Duration),
    /// Its model refused.
    Refused(E),
    /// What it said is no verdict.
    Unusable(String),
}

/// When a critic is asked. Those of one model on one device follow the first: when it begins to answer, the text was read,
/// and the others find it in the cache of prompts. Asked at once, each would read it.
enum Turn {
    Leads(watch::Sender<bool>),
    Follows(watch::Receiver<bool>),
}

impl Panel {
    /// The critics of the settings.
    pub(crate) fn of(config: &Config) -> Result<Self, ConfigError> {
        let critic = |settings: CriticSettings| {
            let schema = match &settings.schema {
                None => VerdictSchema::usual(),
                Some(text) => VerdictSchema::read(text).map_err(|reason| ConfigError::Critic {
                    location: format!("{}.schema", settings.location),
                    reason,
                })?,
            };
            Ok(Critic { settings, schema })
        };
        let critics = config.critics()?.into_iter().map(critic).collect::<Result<_, ConfigError>>()?;
        Ok(Self { critics, accept_from: config.accept_from() })
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.critics.iter().map(|critic| critic.settings.name.as_str())
    }

    /// The models of some critics; `None` for one that has none of its own.
    pub(crate) fn models(&self, critics: &[usize]) -> impl Iterator<Item = Option<&str>> {
        critics.iter().map(|index| self.critics[*index].settings.model.as_deref())
    }

    /// The critics of these names, all without any; what is wrong is told.
    pub(crate) fn choose<T: AsRef<str>>(&self, names: &[T]) -> Result<Vec<usize>, String> {
        let known = || self.names().collect::<Vec<_>>().join(", ");
        let mut chosen = Vec::new();
        for name in names.iter().map(AsRef::as_ref) {
            let shown: String = name.chars().take(100).collect();
            let at = self.names().position(|known| known == name);
            let at = at.ok_or_else(|| format!("there is no critic '{shown}'; there is {}", known()))?;
            if chosen.contains(&at) {
                return Err(format!("the critic '{shown}' is named twice"));
            }
            chosen.push(at);
        }
        chosen.sort_unstable();
        Ok(if names.is_empty() { (0..self.critics.len()).collect() } else { chosen })
    }

    /// Asks the critics, and what their models refused.
    pub(crate) async fn judge<M: Models>(&self, models: &M, judging: &Judging<'_>) -> (Report, Vec<M::Error>) {
        let matter = Matter::new(judging.text, judging.precedents);
        let ids: Vec<String> = judging.precedents.iter().map(Precedent::shown_id).collect();
        let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
        let (begun, done) = (Instant::now(), AtomicUsize::new(0));
        let mut leads: Vec<(Place, watch::Receiver<bool>)> = Vec::new();
        let mut asked = Vec::new();
        for critic in judging.critics.iter().map(|index| &self.critics[*index]) {
            let found = models.find(critic.settings.model.as_deref().or(judging.model));
            let turn = found.as_ref().ok().map(|found| {
                let key = (found.number, critic.settings.device);
                match leads.iter().find(|(known, _)| *known == key) {
                    Some((_, lead)) => Turn::Follows(lead.clone()),
                    None => {
                        let (sender, receiver) = watch::channel(false);
                        leads.push((key, receiver));
                        Turn::Leads(sender)
                    }
                }
            });
            let (matter, ids, done) = (&matter, &ids, &done);
            asked.push(async move {
                let name = found.as_ref().ok().map(|found| found.name.clone());
                let verdict = match (found, turn) {
                    (Ok(found), Some(turn)) => critic.judge(models, found.number, turn, (matter, ids)).await,
                    (Err(error), _) => Err(Missing::Refused(error)),
                    (Ok(_), None) => unreachable!("each model that was found has its turn"),
                };
                let latency = begun.elapsed();
                (judging.on_done)(done.fetch_add(1, Ordering::Relaxed) + 1);
                (critic, name, verdict, latency)
            });
        }
        let (mut critics, mut refusals) = (Vec::new(), Vec::new());
        for (critic, model, verdict, latency) in together::all(asked).await {
            let mut report = critic.report(model, &verdict, judging.precedents);
            report.latency_ms = (latency.as_secs_f64() * 1e6).round() / 1e3;
            critics.push(report);
            if let Err(Missing::Refused(error)) = verdict {
                refusals.push(error);
            }
        }
        (self.report(critics, judging.precedents), refusals)
    }

    fn report(&self, critics: Vec<CriticReport>, precedents: &[Precedent]) -> Report {
        let precedent = |one: &Precedent| PrecedentReport {
            id: one.id.clone(),
            similarity: one.similarity,
            text: one.text.clone(),
            evaluation: one.evaluation.clone(),
            cited_by: critics.iter().filter(|c| c.citations.contains(&one.id)).map(|c| c.name.clone()).collect(),
        };
        let precedents = precedents.iter().map(precedent).collect();
        let ballots: Vec<Ballot<'_>> = critics.iter().map(ballot_of).collect();
        let aggregate = aggregate(&ballots, self.accept_from);
        Report { aggregate, precedents, critics, stored: None }
    }
}

fn ballot_of(critic: &CriticReport) -> Ballot<'_> {
    let CriticReport { name, weight, veto_below, score, .. } = critic;
    Ballot { name, weight: *weight, veto_below: *veto_below, score: *score }
}

/// A verdict and how it came about.
struct Judged {
    verdict: Verdict,
    end: AnswerEnd,
    prompt_tokens: usize,
}

impl Critic {
    async fn judge<M: Models>(
        &self,
        models: &M,
        model: usize,
        turn: Turn,
        (matter, ids): (&Matter, &[&str]),
    ) -> Result<Judged, Missing<M::Error>> {
        let within = self.settings.within;
        let schema = self.schema.citing(ids);
        let shown = (!self.schema.is_usual()).then_some(&schema);
        let conversation = matter.ask(&self.settings.prompt, shown);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() as i64);
        let input = ChatInput { conversation, splits_thinking: true, now, ..ChatInput::default() };
        // The likeliest tokens: the same text gets the same verdict.
        let constraint = Some(Constraint::JsonSchema(schema.to_string()));
        let sampling = Sampling { temperature: 0.0, constraint, ..Sampling::default() };
        let input = JobInput::Chat(Box::new(input));
        let job = Job { model, input, sampling, stops: Vec::new(), answers: 1, tokens_max: TokensMax::Usual };
        let answering = async {
            let lead = match turn {
                Turn::Leads(sender) => Some(sender),
                Turn::Follows(mut lead) => {
                    // One that leads may be slow for reasons of its own, and then the text is read twice.
                    let _ = timeout(within / 2, lead.wait_for(|has_begun| *has_begun)).await;
                    None
                }
            };
            let begun = || {
                if let Some(lead) = &lead {
                    lead.send_replace(true);
                }
            };
            models.answer(job, self.settings.device, begun).await
        };
        let answered = timeout(within, answering).await.map_err(|_| Missing::Late(within))?;
        let Answered { answer, prompt_tokens } = answered.map_err(Missing::Refused)?;
        let Some(end) = answer.end else { return Err(Missing::Unusable("its verdict has no end".to_owned())) };
        if end.finish == Finish::Length {
            let message = format!("its verdict is not complete after {} tokens", end.tokens);
            return Err(Missing::Unusable(message));
        }
        let verdict = Verdict::read(&answer.text, ids).map_err(Missing::Unusable)?;
        Ok(Judged { verdict, end, prompt_tokens })
    }

    fn report<E: fmt::Display>(
        &self,
        model: Option<String>,
        judged: &Result<Judged, Missing<E>>,
        precedents: &[Precedent],
    ) -> CriticReport {
        let CriticSettings { name, weight, veto_below, .. } = &self.settings;
        let (status, error) = match judged {
            Ok(_) => (Status::Judged, None),
            Err(Missing::Late(within)) => (Status::Late, Some(format!("no verdict within {} s", within.as_secs_f64()))),
            Err(Missing::Refused(error)) => (Status::Failed, Some(error.to_string())),
            Err(Missing::Unusable(reason)) => (Status::Failed, Some(reason.clone())),
        };
        let judged = judged.as_ref().ok();
        let verdict = judged.map(|judged| &judged.verdict);
        let end = judged.map(|judged| &judged.end);
        let score = verdict.map(|verdict| verdict.score);
        let is_cited = |one: &&Precedent| verdict.is_some_and(|verdict| verdict.citations.contains(&one.shown_id()));
        let fallback =
            end.and_then(|end| end.answer.as_ref()?.fallback.as_ref().map(|reason| reason.code().to_owned()));
        CriticReport {
            name: name.clone(),
            status,
            score,
            reasons: verdict.map(|verdict| verdict.reasons.clone()).unwrap_or_default(),
            citations: precedents.iter().filter(is_cited).map(|one| one.id.clone()).collect(),
            verdict: verdict.map(|verdict| verdict.whole.clone()),
            error,
            weight: *weight,
            veto_below: *veto_below,
            is_veto: Ballot { name, weight: *weight, veto_below: *veto_below, score }.is_veto(),
            latency_ms: 0.0,
            model,
            device: end.and_then(AnswerEnd::device).map(|device| device.to_string()),
            fallback,
            prompt_tokens: judged.map_or(0, |judged| judged.prompt_tokens),
            cached_tokens: end.map_or(0, |end| end.cached_tokens),
            tokens: end.map_or(0, |end| end.tokens),
        }
    }
}
