//! Keeps the answers of a model's sequences to their constraints: which tokens may follow, computed beside the passes.
//! Chooses no token. A constraint that a model cannot follow ends its own sequence, with the reason.

use crate::decoder::grammar::{Grammars, Match, Next};
use crate::decoder::{Constraint, ConstraintError, DecoderFiles, Sampling};
use crate::spec::GenerateSpec;
use crate::tokenize::Vocabulary;
use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// What the constraints of a model's sequences share.
pub(crate) struct Guides {
    shared: Arc<Shared>,
    /// Threads that compute masks, from the first constraint on. They end with this side of the channel.
    jobs: OnceLock<Sender<Job>>,
}

struct Shared {
    spec: GenerateSpec,
    /// Made when the first constraint comes: most models never have one.
    grammars: OnceLock<Result<Grammars, ConstraintError>>,
    /// Compiled constraints, the last one used at the end.
    compiled: Mutex<VecDeque<(Constraint, Match)>>,
}

/// The constraint of a sequence, and where its answer stands.
pub(crate) struct Guide {
    guides: Arc<Guides>,
    constraint: Constraint,
    prompt_tokens: usize,
    /// Tokens of the sequence that are known here.
    known: usize,
    /// Chosen tokens that the match has not taken.
    untaken: Vec<u32>,
    /// Those that it has.
    taken: usize,
    state: GuideState,
}

enum GuideState {
    /// Nothing is computed; without a match none was compiled.
    Idle(Option<Match>),
    /// On a thread, which sends it back with what may follow.
    Away(Receiver<Computed>),
    /// What may follow is known.
    Ready(Match, Next),
    /// The answer cannot go on.
    Failed(ConstraintError),
}

/// What may be done with the logits of a sequence.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Allowed {
    /// A token may be chosen.
    Token,
    /// The answer is complete.
    End,
}

type Computed = Result<(Match, Next), ConstraintError>;
type Job = Box<dyn FnOnce() + Send>;

/// Masks of different sequences are computed side by side: 64 of some ten microseconds each are to be done well before a pass of a
/// millisecond.
const THREADS_MAX: usize = 8;
/// Compiled constraints that are kept.
const COMPILED_MAX: usize = 16;

impl Guides {
    pub(crate) fn new(spec: &GenerateSpec) -> Self {
        let (grammars, compiled) = (OnceLock::new(), Mutex::default());
        Self { shared: Arc::new(Shared { spec: spec.clone(), grammars, compiled }), jobs: OnceLock::new() }
    }

    /// For a sequence that begins; `None` where its output is free.
    pub(crate) fn guide(self: &Arc<Self>, sampling: &Sampling) -> Option<Guide> {
        let constraint = sampling.constraint.clone()?;
        let prompt_tokens = sampling.prompt_tokens as usize;
        let (guides, state) = (Arc::clone(self), GuideState::Idle(None));
        Some(Guide { guides, constraint, prompt_tokens, known: 0, untaken: Vec::new(), taken: 0, state })
    }

    /// Reads the tokens of the model now.
    #[cfg(test)]
    pub(crate) fn prepare(&self) {
        assert!(self.shared.grammars.get_or_init(|| self.shared.grammars()).is_ok());
    }

    /// Does something on another thread, or here where there can be none.
    fn run(&self, job: Job) {
        if let Err(unsent) = self.jobs.get_or_init(start_threads).send(job) {
            (unsent.0)();
        }
    }
}

fn start_threads() -> Sender<Job> {
    let (sender, receiver) = channel::<Job>();
    let receiver = Arc::new(Mutex::new(receiver));
    let count = std::thread::available_parallelism().map_or(1, usize::from).div_ceil(2).min(THREADS_MAX);
    for _ in 0..count {
        let receiver = Arc::clone(&receiver);
        let work = move || {
            let next = || receiver.lock().unwrap_or_else(PoisonError::into_inner).recv();
            while let Ok(job) = next() {
                job();
            }
        };
        if let Err(error) = std::thread::Builder::new().name("magray-masks".to_owned()).spawn(work) {
            tracing::warn!(target: "magray::engine", %error, "a thread for constraints did not start");
        }
    }
    sender
}

impl Shared {
    fn compute(&self, known: Option<Match>, constraint: &Constraint, tokens: &[u32]) -> Computed {
        let mut answer = match known {
            Some(answer) => answer,
            None => self.begin(constraint)?,
        };
        tokens.iter().try_for_each(|token| answer.take(*token).map(|_| ()))?;
        let next = answer.next()?;
        Ok((answer, next))
    }

    /// The beginning of an answer; a constraint that was seen before is not compiled again.
    fn begin(&self, constraint: &Constraint) -> Result<Match, ConstraintError> {
        let lock = || self.compiled.lock().unwrap_or_else(PoisonError::into_inner);
        let mut compiled = lock();
        if let Some(at) = compiled.iter().position(|(known, _)| known == constraint) {
            let found = compiled.remove(at);
            let copy = found.as_ref().map(|(_, found)| found.copy());
            compiled.extend(found);
            if let Some(copy) = copy {
                return Ok(copy);
            }
        }
        drop(compiled);
        let made = self.grammars.get_or_init(|| self.grammars()).as_ref().map_err(Clone::clone)?.begin(constraint)?;
        let mut compiled = lock();
        compiled.push_back((constraint.clone(), made.copy()));
        if compiled.len() > COMPILED_MAX {
            compiled.pop_front();
        }
        Ok(made)
    }

    fn grammars(&self) -> Result<Grammars, ConstraintError> {
        let GenerateSpec { source, decoder, ends, .. } = &self.spec;
        let refused = |reason: String| ConstraintError::Refused { kind: "tokenizer", reason };
        let files = DecoderFiles::of(source).map_err(|error| refused(error.to_string()))?;
        let found = files.tokenizer(decoder.context).map_err(|error| refused(error.to_string()))?;
        let vocabulary: Vocabulary = found.ok_or_else(|| refused("random weights have none".to_owned()))?.1;
        Grammars::new(&vocabulary, decoder.vocab, ends)
    }
}

impl Guide {
    /// Takes note of tokens of the sequence from this place on. Those that are known count once, those of the prompt not at all.
    pub(crate) fn note(&mut self, place: usize, ids: &[u32]) {
        let first = self.known.max(self.prompt_tokens).saturating_sub(place).min(ids.len());
        self.untaken.extend_from_slice(&ids[first..]);
        self.known = self.known.max(place + ids.len());
    }

    /// Begins to compute what may follow the tokens that are known.
    pub(crate) fn begin(&mut self) {
        if !self.untaken.is_empty() {
            self.rest();
        }
        let known = match std::mem::replace(&mut self.state, GuideState::Idle(None)) {
            GuideState::Idle(known) => known,
            other => return self.state = other,
        };
        let tokens = std::mem::take(&mut self.untaken);
        self.taken += tokens.len();
        let (sender, receiver) = channel();
        let (shared, constraint) = (Arc::clone(&self.guides.shared), self.constraint.clone());
        self.guides.run(Box::new(move || {
            // The receiver is gone where the sequence has ended.
            let _ = sender.send(shared.compute(known, &constraint, &tokens));
        }));
        self.state = GuideState::Away(receiver);
    }

    /// Rules the tokens out that may not follow. Logits that are no numbers stay as they are.
    pub(crate) fn restrict(&mut self, logits: &mut [f32]) -> Result<Allowed, ConstraintError> {
        let allowed = self.settle();
        if let Some(bits) = self.mask()
            // A comparison with NaN is false: what the device computed wrong must not be hidden.
            && logits.iter().all(|logit| *logit < f32::INFINITY)
        {
            let is_ruled_out = |id: usize| bits.get(id / 32).is_none_or(|word| word >> (id % 32) & 1 == 0);
            let ruled_out = logits.iter_mut().enumerate().filter(|(id, _)| is_ruled_out(*id));
            ruled_out.for_each(|(_, logit)| *logit = f32::NEG_INFINITY);
        }
        allowed
    }

    /// Waits until it is known what may follow.
    pub(crate) fn settle(&mut self) -> Result<Allowed, ConstraintError> {
        self.begin();
        self.wait();
        match &self.state {
            GuideState::Ready(_, Next::Tokens(_)) => Ok(Allowed::Token),
            GuideState::Ready(_, Next::End) => Ok(Allowed::End),
            GuideState::Failed(error) => Err(error.clone()),
            GuideState::Idle(_) | GuideState::Away(_) => Err(lost()),
        }
    }

    /// The tokens that may follow, where that is known: a bit for each, from the lowest of the first word on.
    pub(crate) fn mask(&self) -> Option<&[u32]> {
        match &self.state {
            GuideState::Ready(_, Next::Tokens(allowed)) => Some(allowed.as_slice()),
            _ => None,
        }
    }

    /// Takes the token that was chosen; says whether the answer is complete.
    pub(crate) fn take(&mut self, place: usize, token: u32) -> Result<bool, ConstraintError> {
        self.rest();
        self.known = self.known.max(place + 1);
        let taken = match &mut self.state {
            GuideState::Idle(Some(answer)) => answer.take(token),
            GuideState::Failed(error) => Err(error.clone()),
            _ => Err(lost()),
        };
        match &taken {
            Ok(_) => self.taken += 1,
            Err(error) => self.state = GuideState::Failed(error.clone()),
        }
        taken
    }

    /// Forgets chosen tokens from this place on.
    pub(crate) fn forget(&mut self, place: usize) {
        self.known = self.known.min(place);
        let kept = place.saturating_sub(self.prompt_tokens);
        self.untaken.truncate(kept.saturating_sub(self.taken));
        if kept < self.taken {
            self.rest();
            if let GuideState::Idle(Some(answer)) = &mut self.state
                && let Err(error) = answer.take_back(self.taken - kept)
            {
                self.state = GuideState::Failed(error);
            }
            self.taken = kept;
        }
    }

    /// Waits for what is computed, and lets go of what may follow.
    fn rest(&mut self) {
        self.wait();
        self.state = match std::mem::replace(&mut self.state, GuideState::Idle(None)) {
            GuideState::Ready(answer, _) => GuideState::Idle(Some(answer)),
            other => other,
        };
    }

    fn wait(&mut self) {
        if let GuideState::Away(receiver) = &self.state {
            self.state = match receiver.recv().unwrap_or_else(|_| Err(lost())) {
                Ok((answer, next)) => GuideState::Ready(answer, next),
                Err(error) => GuideState::Failed(error),
            };
        }
    }
}

/// A thread ended without an answer.
fn lost() -> ConstraintError {
    ConstraintError::Refused { kind: "constraint", reason: "computing what may follow failed".to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::tiny_decoder;

    fn guides(folder: &tempfile::TempDir) -> Arc<Guides> {
        tiny_decoder::write(folder.path(), 1).unwrap();
        let spec = DecoderFiles::open(folder.path()).unwrap().model_spec().unwrap();
        Arc::new(Guides::new(spec.generates().unwrap()))
    }

    /// The bytes that may follow; the end as `$`.
    fn next(guide: &mut Guide) -> String {
        let mut logits = vec![0.0; 300];
        if guide.restrict(&mut logits).unwrap() == Allowed::End {
            return "END".to_owned();
        }
        let vocabulary = Vocabulary::open(guide.guides.shared.folder()).unwrap();
        let allowed = (0_u32..).zip(&logits).filter(|(_, logit)| **logit == 0.0);
        allowed.map(|(id, _)| if id == tiny_decoder::END { "$".to_owned() } else { vocabulary.text(&[id]) }).collect()
    }

    impl Shared {
        fn folder(&self) -> &std::path::Path {
            match &self.spec.source {
                crate::spec::decoder::DecoderSource::Path(path) => path,
                crate::spec::decoder::DecoderSource::Synthetic(_) => unreachable!("it has a folder"),
            }
        }

        /// The token of a byte.
        fn id(&self, byte: u8) -> u32 {
            let vocabulary = Vocabulary::open(self.folder()).unwrap();
            (0..256).find(|id| vocabulary.bytes(*id) == [byte]).unwrap()
        }
    }

    #[test]
    fn answers_are_replayed_taken_back_and_kept_apart() {
        let folder = tempfile::tempdir().unwrap();
        let guides = guides(&folder);
        let choices = ["north", "no", "nine"].map(str::to_owned).to_vec();
        let constraint = Some(Constraint::Choices(choices));
        let sampling = Sampling { constraint, prompt_tokens: 2, ..Sampling::default() };
        let id = |byte| guides.shared.id(byte);
        let mut first = guides.guide(&sampling).unwrap();
        first.note(0, &[7, 8]);
        first.begin();
        assert_eq!(next(&mut first), "n");
        assert!(!first.take(2, id(b'n')).unwrap());
        assert_eq!(next(&mut first), "io");
        assert!(!first.take(3, id(b'o')).unwrap());
        // The next step names the last token again.
        first.note(3, &[id(b'o')]);
        assert_eq!(next(&mut first), "r$");
        // Another worker takes over: it reads all tokens, in parts.
        let mut other = guides.guide(&sampling).unwrap();
        other.note(0, &[7, 8, id(b'n')]);
        other.note(3, &[id(b'i')]);
        other.begin();
        assert_eq!(next(&mut other), "n");
        assert!(!other.take(4, id(b'n')).unwrap());
        assert!(other.take(5, id(b'e')).unwrap());
        assert_eq!(next(&mut other), "END");
        // A step that failed is taken back.
        other.forget(3);
        assert_eq!(next(&mut other), "io");
        other.note(3, &[id(b'o'), id(b'r')]);
        assert_eq!(next(&mut other), "t");
        other.forget(4);
        assert_eq!(next(&mut other), "r$");
        assert_eq!(next(&mut first), "r$");
        assert!(guides.guide(&Sampling::default()).is_none());
    }

    #[test]
    fn what_cannot_be_followed_ends_its_own_sequence_with_the_reason() {
        let folder = tempfile::tempdir().unwrap();
        let guides = guides(&folder);
        let of = |text: &str| Sampling { constraint: Some(Constraint::Regex(text.to_owned())), ..Sampling::default() };
        let mut broken = guides.guide(&of("(a")).unwrap();
        assert!(broken.restrict(&mut [0.0; 300]).is_err());
        let mut wrong = guides.guide(&of("ab")).unwrap();
        wrong.note(0, &[guides.shared.id(b'x')]);
        assert!(wrong.restrict(&mut [0.0; 300]).is_err());
        let mut good = guides.guide(&of("ab")).unwrap();
        assert_eq!(next(&mut good), "a");
        let mut numbers = [0.0; 300];
        numbers[7] = f32::NAN;
        good.restrict(&mut numbers).unwrap();
        assert!(numbers[7].is_nan() && numbers[8] == 0.0, "what is no number is not hidden");
    }
}
