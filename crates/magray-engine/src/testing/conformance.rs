//! What every executor must do, checked by doing it: models come and go, rows stay the same, memory goes back to nothing.
//! Knows nothing of what rows mean, and panics with what does not hold.

use crate::executors::{
    Bell, Executor, ExecutorModel, Failure, FailureKind, Feed, FilledImage, GroupLayout, InjectedFault, Job,
    OpenExecutor, Origin,
};
use crate::executors::{NewTokens, Outcomes, SequenceStep, Steps};
use crate::packed::Tokens;
use crate::vectors::unit;
use magray_device::SharedMemory;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// An executor and what may be asked of it.
#[derive(Debug)]
pub struct Suite<'a> {
    /// Opens it.
    pub executor: &'a dyn OpenExecutor,
    /// A model that it can load.
    pub model: ExecutorModel,
    /// Ids below this are tokens of the model.
    pub vocab: u32,
    /// Tokens of the longest text.
    pub tokens_max: usize,
    /// Texts of the largest batch.
    pub texts_max: usize,
    /// Rows of one text may differ by this in each number, between batches.
    pub tolerance: f32,
    /// This many of the longest texts are more than its memory holds.
    pub too_many_texts: Option<usize>,
}

/// Two models, so that one can be seen to stay when the other goes.
const MODELS: usize = 2;

/// Checks a model that generates, with ids below 256: a prompt gives the same tokens in one step, in chunks, and again after its state was
/// lost, where the device `is_exact`; where it rounds otherwise for other numbers of rows, as many tokens. The same steps have the same
/// tokens on every device, also after the weights left, with an image of them and without. Its memory goes back to nothing.
pub fn check_generating(executor: &dyn OpenExecutor, model: ExecutorModel, is_exact: bool) {
    // Weights of a group count as often as the fullest GPU has; each gives back its own.
    let gpus = model.group.as_ref().map_or(1, GroupLayout::gpus) as u64;
    let executor = executor.open(&[model]).unwrap_or_else(|failure| panic!("it does not open: {failure}"));
    let executor = &*executor;
    assert_eq!(allocated(executor), 0, "bytes before anything is loaded");
    let bytes = bring(executor, None, &[Origin::Files]);
    assert!(allocated(executor) > 0, "weights take memory");
    let prompt: Vec<u32> = (0..70).map(|at| at * 37 % 256).collect();
    let part = |from: usize, to: usize, new| advance(executor, &prompt[from..to], from as u32, new);
    let must = |new: Result<Vec<NewTokens>, Failure>| new.unwrap_or_else(|failure| panic!("{failure}"));
    let whole = must(part(0, prompt.len(), 3));
    assert!(whole.len() == 1 && (1..=3).contains(&whole[0].tokens.len()), "1 to 3 new tokens");
    assert!(part(prompt.len() - 1, prompt.len(), 1).is_err(), "a step that does not begin where its sequence ends");
    executor.free(SEQUENCE);
    assert!(must(part(0, 4, 0))[0].tokens.is_empty(), "no new tokens before the prompt ends");
    let assert_same = |mut new: Vec<NewTokens>, what: &str| {
        // A replay may find its pages.
        new.iter_mut().for_each(|new| new.cached = 0);
        match is_exact {
            true => assert_eq!(new, whole, "{what}"),
            false => assert!(new.len() == 1 && (1..=3).contains(&new[0].tokens.len()), "{what}: {new:?}"),
        }
    };
    assert_same(must(part(4, prompt.len(), 3)), "new tokens after chunks");
    executor.free(SEQUENCE);
    executor.free(SEQUENCE);
    assert_same(must(part(0, prompt.len(), 3)), "new tokens of a replay");
    let leave = || {
        let before = allocated(executor);
        executor.offload(0);
        assert!(allocated(executor) + bytes / gpus <= before, "the weights' bytes are given back");
        assert!(part(prompt.len(), prompt.len(), 1).is_err(), "a model whose weights have left");
    };
    let again = |what: &str| {
        assert!(part(prompt.len(), prompt.len(), 1).is_err(), "sequences go with the weights");
        assert_eq!(must(part(0, prompt.len(), 3)), whole, "{what}");
    };
    leave();
    bring(executor, None, &[Origin::Parked, Origin::Files]);
    again("new tokens after the weights left");
    if let Some(image) = fill_image(executor, bytes, gpus) {
        for _ in 0..2 {
            leave();
            bring(executor, None, &[Origin::Parked]);
            again("new tokens of weights that came back from their image");
        }
        executor.release(0);
        bring(executor, Some(image), &[Origin::Image]);
        again("new tokens of weights that were loaded from an image");
        leave();
        executor.trim();
        bring(executor, None, &[Origin::Parked]);
        again("new tokens after all memory was given back meanwhile");
    }
    executor.release(0);
    assert_eq!(allocated(executor), 0, "bytes when nothing is loaded any more");
}

/// Loads the model and waits for its weights; their bytes.
fn bring(executor: &dyn Executor, image: Option<FilledImage>, origins: &[Origin]) -> u64 {
    let arrival = executor.load(0, image).unwrap_or_else(|failure| panic!("it does not load: {failure}"));
    assert!(origins.contains(&arrival.origin), "{:?} is none of {origins:?}", arrival.origin);
    assert_eq!(arrival.image_failure, None);
    assert!(arrival.arriving.is_none_or(|arriving| arriving().is_ok()), "its weights arrive");
    arrival.bytes
}

/// An image of the weights; `None` where the executor has none.
fn fill_image(executor: &dyn Executor, bytes: u64, gpus: u64) -> Option<FilledImage> {
    // Parts of several devices lie apart.
    let memory = SharedMemory::of_bytes(bytes + (1 << 20)).expect("memory to share");
    let other = memory.fd().try_clone_to_owned().and_then(SharedMemory::from_fd_whole).expect("the same memory");
    let (tell, told) = std::sync::mpsc::channel();
    executor.keep_image(0, other, Box::new(move |filled| tell.send(filled).expect("the suite waits for it")));
    match told.recv().expect("it is told") {
        Ok(filled) => {
            assert!((bytes / gpus..=memory.bytes() as u64).contains(&filled), "all weights are in it");
            Some(FilledImage { memory, bytes: filled })
        }
        Err(failure) => {
            // Weights that are read anew each time.
            assert_eq!((failure.code.as_str(), executor.label().name.as_str()), ("weights_away", "CPU"), "{failure}");
            None
        }
    }
}

const SEQUENCE: u64 = 5;

/// A step of one sequence.
fn advance(executor: &dyn Executor, ids: &[u32], from: u32, new_tokens_max: u32) -> Result<Vec<NewTokens>, Failure> {
    let step = SequenceStep {
        sequence: SEQUENCE,
        from,
        ids,
        new_tokens_max,
        passes_max: u32::MAX,
        goes_on: false,
        sampling: None,
    };
    let mut outcomes = Outcomes::default();
    executor.run(0, Steps::Parts(&[step]), &mut outcomes)?;
    Ok(outcomes.new_tokens)
}

impl Suite<'_> {
    /// Checks all of it.
    pub fn check(&self) {
        let executor = self.open();
        assert!(!executor.label().name.is_empty(), "its devices have a name");
        refuses(&*executor, 0, "a model that was never loaded");
        self.check_rows(&*executor);
        self.check_moves(&*executor);
        self.check_feed(&*executor);
        self.check_side_by_side(&*executor);
        self.check_token_rows(&*executor);
        self.check_unscaled_rows(&*executor);
        self.check_parts(&*executor);
        self.check_full_memory(&*executor);
        (0..MODELS).for_each(|model| executor.release(model));
        assert_eq!(allocated(&*executor), 0, "bytes when nothing is loaded any more");
        drop(executor);
        self.check_fault();
    }

    fn open(&self) -> Arc<dyn Executor> {
        let executor = self.executor.open(&vec![self.model.clone(); MODELS]);
        let executor = executor.unwrap_or_else(|failure| panic!("it does not open: {failure}"));
        assert_eq!(allocated(&*executor), 0, "bytes before anything is loaded");
        executor
    }

    /// Texts of several lengths, from one token to the most.
    fn texts(&self, count: usize) -> Vec<Vec<u32>> {
        let length = |at: usize| if at == 0 { self.tokens_max } else { 1 + (at * 37) % self.tokens_max };
        let id = |at: usize, token: usize| ((at * 31 + token * 7 + 1) as u32) % self.vocab;
        (0..count).map(|at| (0..length(at)).map(|token| id(at, token)).collect()).collect()
    }

    /// One text, many, none: the same text has the same row, wherever it stands.
    fn check_rows(&self, executor: &dyn Executor) {
        let (outputs, _) = load(executor, 0, Origin::Files);
        assert!(rows(executor, 0, &[]).is_empty(), "no rows for no texts");
        let texts = self.texts(self.texts_max);
        let together = rows(executor, 0, &texts);
        assert_eq!(together.len(), texts.len() * outputs, "a row for each text");
        assert!(together.iter().all(|number| number.is_finite()), "finite numbers");
        for (text, row) in texts.iter().zip(together.chunks_exact(outputs)).take(5) {
            self.assert_near(&rows(executor, 0, std::slice::from_ref(text)), row, "a text by itself and among others");
        }
        let twice = rows(executor, 0, &[texts[1].clone(), texts[0].clone(), texts[1].clone()]);
        self.assert_near(&twice[..outputs], &twice[2 * outputs..], "one text twice in a batch");
        assert_ne!(twice[..outputs], twice[outputs..2 * outputs], "other texts have other rows");
    }

    /// What leaves comes back as it was, and takes nothing that it does not give back.
    fn check_moves(&self, executor: &dyn Executor) {
        let texts = self.texts(3);
        let expected = rows(executor, 0, &texts);
        let with_one = allocated(executor);
        let (outputs, bytes) = load(executor, 0, Origin::Device);
        assert_eq!(outputs, expected.len() / 3, "a model that is there is there");
        assert_eq!(allocated(executor), with_one, "bytes of a model that is loaded twice");
        executor.offload(0);
        executor.offload(0);
        assert!(allocated(executor) + bytes <= with_one, "the weights' bytes are given back");
        refuses(executor, 0, "a model whose weights have left");
        reload(executor, 0);
        self.assert_near(&rows(executor, 0, &texts), &expected, "rows before and after the weights left");
        load(executor, 1, Origin::Files);
        executor.release(0);
        executor.release(0);
        refuses(executor, 0, "a model that was released");
        self.assert_near(&rows(executor, 1, &texts), &expected, "rows of the model that stayed");
        executor.trim();
        executor.tend();
        self.assert_near(&rows(executor, 1, &texts), &expected, "rows after memory was trimmed");
        executor.release(1);
        assert_eq!(allocated(executor), 0, "bytes when both are released");
        load(executor, 0, Origin::Files);
        self.assert_near(&rows(executor, 0, &texts), &expected, "rows of a model that was released and loaded");
    }

    /// Jobs of a feed are each answered once, as if each were the only one.
    fn check_feed(&self, executor: &dyn Executor) {
        let texts = self.texts(self.texts_max);
        let jobs = [&texts[..1], &texts[..], &[], &texts[1..3.min(texts.len())]];
        let feed = Jobs { jobs: &jobs, next: AtomicUsize::new(0), done: Mutex::default(), bell: Bell::default() };
        executor.run_all(0, &feed);
        let done = feed.done.into_inner().unwrap_or_else(PoisonError::into_inner);
        assert_eq!(done.len(), jobs.len(), "every job is answered");
        for (at, texts) in jobs.iter().enumerate() {
            let answer = done[&at].as_ref().unwrap_or_else(|failure| panic!("a job failed: {failure}"));
            self.assert_near(answer, &rows(executor, 0, texts), "rows of a job and of a batch");
        }
    }

    /// Batches that are under way together have the rows that each has alone, in whatever order they are finished.
    fn check_side_by_side(&self, executor: &dyn Executor) {
        let texts = self.texts(5.min(self.texts_max));
        let batches = [&texts[..1], &texts[..], &texts[texts.len() - 1..]];
        let expected: Vec<Vec<f32>> = batches.iter().map(|texts| rows(executor, 0, texts)).collect();
        let begin = |texts: &&[Vec<u32>]| {
            let tokens: Vec<Tokens<'_>> = texts.iter().map(|ids| Tokens { ids, types: &[] }).collect();
            let begun = executor.begin(0, &tokens, 0);
            begun.unwrap_or_else(|failure| panic!("a batch was not begun: {failure}"))
        };
        let mut begun: Vec<_> =
            batches.iter().zip(&expected).filter_map(|(texts, rows)| Some((begin(texts)?, rows))).collect();
        while let Some((under_way, expected)) = begun.pop() {
            executor.tend();
            while !executor.is_done(&under_way) {}
            let mut outcomes = Outcomes::default();
            let finished = executor.finish(under_way, &mut outcomes);
            finished.unwrap_or_else(|failure| panic!("a batch beside others failed: {failure}"));
            self.assert_near(&outcomes.rows, expected, "rows of a batch beside others");
        }
    }

    /// Each token of a text has the same row, whether the text is alone or among others.
    fn check_token_rows(&self, executor: &dyn Executor) {
        let texts = self.texts(4.min(self.texts_max));
        let token_rows = |texts: &[Vec<u32>]| {
            let tokens: Vec<Tokens<'_>> = texts.iter().map(|ids| Tokens { ids, types: &[] }).collect();
            let mut outcomes = Outcomes { rows: vec![f32::NAN; 3], ..Outcomes::default() };
            let ran = executor.run(0, Steps::EachToken(&tokens), &mut outcomes);
            ran.unwrap_or_else(|failure| panic!("it gives no rows of tokens: {failure}"));
            outcomes.rows
        };
        let together = token_rows(&texts);
        let hidden = together.len() / texts.iter().map(Vec::len).sum::<usize>();
        assert!(hidden > 0 && together.iter().all(|number| number.is_finite()), "finite numbers for each token");
        let mut from = 0;
        for text in &texts {
            let to = from + text.len() * hidden;
            let alone = token_rows(std::slice::from_ref(text));
            // They are not scaled to length 1.
            let largest = alone.iter().fold(1.0_f32, |most, number| most.max(number.abs()));
            let scaled = |rows: &[f32]| rows.iter().map(|number| number / largest).collect::<Vec<_>>();
            self.assert_near(
                &scaled(&alone),
                &scaled(&together[from..to]),
                "tokens of a text by itself and among others",
            );
            from = to;
        }
        assert_eq!(from, together.len(), "a row for each token");
    }

    /// Rows that are not scaled have the directions of those that may be.
    fn check_unscaled_rows(&self, executor: &dyn Executor) {
        let texts = self.texts(4.min(self.texts_max));
        let tokens: Vec<Tokens<'_>> = texts.iter().map(|ids| Tokens { ids, types: &[] }).collect();
        let rows = |steps| {
            let mut outcomes = Outcomes { rows: vec![f32::NAN; 3], ..Outcomes::default() };
            let ran = executor.run(0, steps, &mut outcomes);
            ran.unwrap_or_else(|failure| panic!("it gives no rows that are not scaled: {failure}"));
            outcomes.rows
        };
        let scaled = rows(Steps::Texts { texts: &tokens, skip: 0 });
        let unscaled = rows(Steps::Unscaled { texts: &tokens, skip: 0 });
        assert_eq!(scaled.len(), unscaled.len(), "a row for each text");
        let columns = scaled.len() / texts.len();
        let units = |rows: &[f32]| rows.chunks(columns).flat_map(unit).collect::<Vec<_>>();
        self.assert_near(&units(&unscaled), &units(&scaled), "directions of rows");
    }

    /// Who generates nothing says so.
    fn check_parts(&self, executor: &dyn Executor) {
        assert!(advance(executor, &[1, 2, 3], 0, 1).is_err(), "a model that generates nothing");
        assert!(!rows(executor, 0, &self.texts(1)).is_empty(), "it goes on");
    }

    /// A batch that finds no memory fails as such, and the next one that does is computed.
    fn check_full_memory(&self, executor: &dyn Executor) {
        let Some(count) = self.too_many_texts else { return };
        let (small, large) = (self.texts(1), vec![self.texts(1)[0].clone(); count]);
        let expected = rows(executor, 0, &small);
        let failure = run(executor, 0, &large).map(drop).expect_err("a batch larger than the memory fails");
        assert_eq!(failure.kind, FailureKind::OutOfMemory, "{failure}");
        self.assert_near(&rows(executor, 0, &small), &expected, "rows after the memory was full");
    }

    /// After a fault it either computes as before or says, also to later calls, that another must be opened.
    fn check_fault(&self) {
        let executor = self.open();
        load(&*executor, 0, Origin::Files);
        let texts = self.texts(2);
        let expected = rows(&*executor, 0, &texts);
        match executor.inject(0, InjectedFault::IllegalAddress, 0) {
            Ok(()) => {
                self.assert_near(&rows(&*executor, 0, &texts), &expected, "rows after a fault that it does not know")
            }
            Err(failure) => {
                let is_over = |kind: FailureKind| matches!(kind, FailureKind::Sticky | FailureKind::Lost);
                assert!(is_over(failure.kind), "{failure}");
                let later = run(&*executor, 0, &texts).map(drop).expect_err("nothing is computed after it");
                assert!(is_over(later.kind), "{later}");
            }
        }
    }

    fn assert_near(&self, rows: &[f32], expected: &[f32], what: &str) {
        assert_eq!(rows.len(), expected.len(), "{what}: as many numbers");
        let worst = rows.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(worst <= self.tolerance, "{what}: they differ by {worst}");
    }
}

/// Loads a model; the numbers of a row, and the bytes of the weights.
fn load(executor: &dyn Executor, model: usize, origin: Origin) -> (usize, u64) {
    let arrival = executor.load(model, None).unwrap_or_else(|failure| panic!("it does not load: {failure}"));
    assert_eq!(arrival.origin, origin, "where the weights came from");
    if let Some(arriving) = arrival.arriving {
        arriving().unwrap_or_else(|failure| panic!("its weights do not arrive: {failure}"));
    }
    assert!(allocated(executor) >= arrival.bytes, "weights are part of what is allocated");
    (arrival.outputs, arrival.bytes)
}

/// Loads a model that has left: from where it was kept, or from its files.
fn reload(executor: &dyn Executor, model: usize) {
    let arrival = executor.load(model, None).unwrap_or_else(|failure| panic!("it does not come back: {failure}"));
    assert!(matches!(arrival.origin, Origin::Parked | Origin::Files), "{:?}", arrival.origin);
    assert!(arrival.arriving.is_none_or(|arriving| arriving().is_ok()), "its weights arrive");
}

fn run(executor: &dyn Executor, model: usize, texts: &[Vec<u32>]) -> Result<Vec<f32>, Failure> {
    let texts: Vec<Tokens<'_>> = texts.iter().map(|ids| Tokens { ids, types: &[] }).collect();
    // What an earlier batch has left there must not shine through.
    let mut outcomes = Outcomes { rows: vec![f32::NAN; 3], ..Outcomes::default() };
    executor.run(model, Steps::Texts { texts: &texts, skip: 0 }, &mut outcomes)?;
    Ok(outcomes.rows)
}

fn rows(executor: &dyn Executor, model: usize, texts: &[Vec<u32>]) -> Vec<f32> {
    run(executor, model, texts).unwrap_or_else(|failure| panic!("it does not compute: {failure}"))
}

fn refuses(executor: &dyn Executor, model: usize, what: &str) {
    let failure = run(executor, model, &[vec![0]]).map(drop).expect_err(what);
    assert_eq!(failure.code, Failure::NOT_LOADED, "{what}: {failure}");
}

/// Bytes of models and batches; none of the other figures contradicts them.
fn allocated(executor: &dyn Executor) -> u64 {
    let memory = executor.memory();
    assert!(memory.spare <= memory.allocated && memory.allocated <= memory.peak_allocated, "{memory:?}");
    assert!(memory.allocated <= memory.total && memory.free <= memory.total, "{memory:?}");
    memory.allocated
}

/// Some batches of texts.
struct Jobs<'a> {
    jobs: &'a [&'a [Vec<u32>]],
    next: AtomicUsize,
    done: Mutex<BTreeMap<usize, Result<Vec<f32>, Failure>>>,
    bell: Bell,
}

struct Batch<'a> {
    at: usize,
    of: &'a Jobs<'a>,
}

impl Feed for Jobs<'_> {
    fn next(&self, _: bool) -> Option<Box<dyn Job + '_>> {
        let at = self.next.fetch_add(1, Ordering::Relaxed);
        (at < self.jobs.len()).then(|| Box::new(Batch { at, of: self }) as Box<dyn Job>)
    }

    fn bell(&self) -> Option<&Bell> {
        Some(&self.bell)
    }
}

impl Job for Batch<'_> {
    fn count(&self) -> usize {
        self.of.jobs[self.at].len()
    }

    fn text(&self, at: usize) -> Tokens<'_> {
        Tokens { ids: &self.of.jobs[self.at][at], types: &[] }
    }

    fn skip(&self) -> usize {
        0
    }

    fn done(&self, outcome: Result<Vec<f32>, Failure>) {
        let mut done = self.of.done.lock().unwrap_or_else(PoisonError::into_inner);
        assert!(done.insert(self.at, outcome).is_none(), "a job is answered once");
    }
}
