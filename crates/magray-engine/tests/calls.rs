//! The calls of the library door: what is awaited is right, and what is dropped is not computed.
//! Uses the CPU alone, tiny models and no network.
#![cfg(unix)]
#![expect(clippy::unwrap_used, reason = "a test that cannot set itself up has to fail")]

use std::path::Path;

use magray_engine::{
    DeviceName, EmbedError, EncoderOptions, SingleDevice,
    engine::{Engine, EngineError, EngineModel, EngineOptions, ModelSource, Output, Work},
    vectors::{cosine, sigmoid, unit},
};

fn fixture(name: &str) -> EngineModel {
    ModelSource::Folder(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)).into()
}

fn synthetic() -> EngineModel {
    ModelSource::Synthetic("tiny".parse().unwrap()).into()
}

fn start(models: Vec<EngineModel>) -> Engine {
    let mut options = EngineOptions::on_cpu(models);
    options.encoder.threads = Some(2);
    Engine::start(options).unwrap()
}

fn wait<F: Future>(future: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

/// What a model makes of work without a queue.
fn plain(name: &str, work: &Work) -> Vec<f32> {
    let options = EncoderOptions { threads: Some(2), ..EncoderOptions::default() };
    SingleDevice::open(&fixture(name).source, DeviceName::Cpu, &options).unwrap().run(work).unwrap()
}

fn assert_near(a: &[f32], b: &[f32]) {
    let worst = a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(a.len() == b.len() && worst < 1e-2, "{worst}, {} and {} numbers", a.len(), b.len());
}

#[test]
fn embed_gives_what_a_plain_pass_gives_for_short_and_for_long_texts() {
    let engine = start(vec![fixture("bert")]);
    // The second is read on a thread beside, being long.
    for texts in [vec!["the cat sat".to_owned(), "a dog".to_owned()], vec!["the cat sat on the mat ".repeat(20); 50]] {
        let expected = plain("bert", &engine.read(0, &texts, None).unwrap());
        assert_near(&wait(engine.embed(0, texts, None)).unwrap().values, &expected);
    }
}

#[test]
fn rerank_scores_pairs_with_a_classifier_and_vectors_with_another_model() {
    let engine = start(vec![fixture("bert"), fixture("xlm-roberta-classify")]);
    let texts = ["a dog", "the cat sat"];
    let pairs = engine.read_pairs(1, &texts.map(|text| ("the cat", text))).unwrap();
    let logits = plain("xlm-roberta-classify", &pairs);
    let ranked = wait(engine.rerank(1, "the cat", texts.to_vec())).unwrap();
    assert_eq!(logits.len(), 2, "the fixture has one label");
    assert_near(&ranked.scores, &logits.iter().map(|logit| sigmoid(*logit)).collect::<Vec<_>>());
    let work = engine.read(0, &["the cat", "a dog", "the cat sat"], None).unwrap();
    let vectors = plain("bert", &work);
    let rows: Vec<&[f32]> = vectors.chunks_exact(vectors.len() / 3).collect();
    let cosines = [cosine(rows[0], rows[1]) as f32, cosine(rows[0], rows[2]) as f32];
    assert_near(&wait(engine.rerank(0, "the cat", texts.to_vec())).unwrap().scores, &cosines);
    assert_near(&wait(engine.similarity(0, "the cat", texts.to_vec())).unwrap().scores, &cosines);
}

#[test]
fn a_model_is_not_asked_for_what_it_does_not_do() {
    let engine = start(vec![fixture("xlm-roberta-classify")]);
    let is_refused = |error| matches!(error, EngineError::Text(EmbedError::WrongTask { .. }));
    assert!(is_refused(wait(engine.embed(0, vec!["a"], None)).unwrap_err()));
    assert!(is_refused(wait(engine.similarity(0, "a", vec!["b"])).unwrap_err()));
    assert!(matches!(wait(engine.rerank(7, "a", vec!["b"])), Err(EngineError::NoModel(7))));
}

#[test]
fn token_ids_sent_to_a_reranker_came_back_as_embeddings() {
    let engine = start(vec![fixture("xlm-roberta-classify")]);
    let error = engine.read_ids(0, vec![vec![5, 6]]).unwrap_err();
    assert!(matches!(error, EngineError::Text(EmbedError::WrongTask { .. })), "{error}");
}

#[test]
fn many_works_are_answered_in_their_order_and_a_wrong_one_harms_none() {
    let engine = start(vec![synthetic()]);
    let ids = |at: u32| vec![vec![at % 500 + 1; 3 + at as usize % 7]];
    let mut works: Vec<_> = (0..40).map(|at| Work::from_ids(0, ids(at))).collect();
    works.insert(20, Work::from_ids(0, vec![vec![u32::MAX]]));
    let mut answers = wait(engine.process_batch(works));
    assert!(matches!(answers.remove(20), Err(EngineError::Text(_))));
    for (at, answer) in answers.into_iter().enumerate() {
        let alone = engine.process(Work::from_ids(0, ids(at as u32))).unwrap();
        assert_near(&answer.unwrap().values, &alone.values);
    }
}

#[test]
fn a_call_that_is_dropped_is_taken_back() {
    let engine = start(vec![synthetic()]);
    let works = || (0..64).map(|at| Work::from_ids(0, vec![vec![at + 1; 128]])).collect();
    wait(async {
        let mut calls = std::pin::pin!(engine.process_batch(works()));
        // Polled once, all of it is in the queue.
        std::future::poll_fn(|context| {
            assert!(calls.as_mut().poll(context).is_pending());
            std::task::Poll::Ready(())
        })
        .await;
        assert!(engine.status().requests > 0);
    });
    // What runs already runs to its end; nothing else is started.
    assert_eq!(engine.status().waiting, 0);
    assert!(engine.process(Work::from_ids(0, vec![vec![1]])).is_ok());
    assert_eq!(engine.status().requests, 0);
}

#[test]
fn the_vectors_of_tokens_pool_to_the_vector_of_their_text() {
    let engine = start(vec![synthetic()]);
    // More than one batch and one chunk hold, of mixed lengths.
    let texts: Vec<Vec<u32>> =
        (0..300).map(|at| (0..1 + at * 7 % 128).map(|id| (at * 31 + id) % 900 + 1).collect()).collect();
    let pooled = engine.process(Work::from_ids(0, texts.clone())).unwrap();
    let tokens = Work { output: Output::Tokens, ..Work::from_ids(0, texts.clone()) };
    let tokens = engine.process(tokens).unwrap();
    assert_eq!(tokens.rows().len(), texts.iter().map(Vec::len).sum::<usize>());
    let mut rows = tokens.rows();
    for (text, expected) in texts.iter().zip(pooled.rows()) {
        let mut sum = vec![0.0; tokens.dimensions];
        for row in rows.by_ref().take(text.len()) {
            sum.iter_mut().zip(row).for_each(|(sum, number)| *sum += number);
        }
        // The model means over its tokens and scales to length 1.
        assert_near(&unit(&sum), expected);
    }
}

#[test]
fn vectors_that_are_not_scaled_are_the_mean_of_their_tokens() {
    let engine = start(vec![synthetic()]);
    let texts: Vec<Vec<u32>> =
        (0..100).map(|at| (0..1 + at * 7 % 128).map(|id| (at * 31 + id) % 900 + 1).collect()).collect();
    let asked = |output| engine.process(Work { output, ..Work::from_ids(0, texts.clone()) }).unwrap();
    let (tokens, unscaled, scaled) = (asked(Output::Tokens), asked(Output::Unscaled), asked(Output::Texts));
    let mut rows = tokens.rows();
    for (text, (row, scaled)) in texts.iter().zip(unscaled.rows().zip(scaled.rows())) {
        let mut mean = vec![0.0; tokens.dimensions];
        for token in rows.by_ref().take(text.len()) {
            mean.iter_mut().zip(token).for_each(|(mean, number)| *mean += number / text.len() as f32);
        }
        let length = row.iter().map(|number| number * number).sum::<f32>().sqrt();
        assert!((length - 1.0).abs() > 0.1, "a vector of length 1 by chance: {length}");
        let of_length = |row: &[f32]| row.iter().map(|number| number / length).collect::<Vec<_>>();
        assert_near(&of_length(row), &of_length(&mean));
        assert_near(&unit(row), scaled);
    }
}

#[test]
fn vectors_of_tokens_are_told_by_text() {
    let engine = start(vec![fixture("bert")]);
    let vectors = wait(engine.embed_tokens(0, vec!["the cat sat", "a"], None)).unwrap();
    let counts: Vec<_> = vectors.texts().map(|text| text.len()).collect();
    assert_eq!(counts, vectors.tokens);
    assert_eq!(counts.iter().sum::<usize>(), vectors.answer.tokens);
}

#[test]
fn health_is_a_pass_and_needs_no_second_while_nothing_changes() {
    let engine = start(vec![synthetic(), synthetic()]);
    assert_eq!(engine.status().devices[0].schedule.texts_finished, 0);
    wait(engine.health()).unwrap();
    let finished = |engine: &Engine| engine.status().devices[0].schedule.texts_finished;
    let passed = finished(&engine);
    assert!(passed >= 1);
    wait(engine.health()).unwrap();
    assert_eq!(finished(&engine), passed);
}
