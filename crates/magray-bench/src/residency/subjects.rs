//! Models that differ in little, each with texts whose right vectors are known.
//! Computes these on the CPU in f32, before anything is measured.

use magray_core::SplitMix64;
use magray_engine::{
    DeviceName, EncoderOptions, EncoderShape, Precision, PrecisionChoice, SingleDevice,
    engine::{ModelSource, Work},
};

use magray_load::{Pool, Tolerance, worst_cosine};

use crate::failure::Failure;

/// Enough that a mix-up of texts does not pass by luck.
const TEXTS: usize = 24;
const TOKENS_MAX: usize = 16;
/// So that weights take far more memory than passes do, whatever the shape.
const VOCABULARY_MIN: usize = 32_768;

#[derive(Debug)]
pub(super) struct Subject {
    pub(super) name: String,
    pub(super) shape: EncoderShape,
    pub(super) pool: Pool,
}

/// Makes models of about this shape, no two of which give a text the same vector.
pub(super) fn make(base: EncoderShape, count: usize, asked: &EncoderOptions) -> Result<Vec<Subject>, Failure> {
    (0..count).map(|at| one(varied(base, at), at, asked)).collect()
}

/// The GPU memory of the largest model's weights, on a simulated GPU or on a real one.
pub(super) fn bytes_max(subjects: &[Subject], precision: Precision) -> u64 {
    subjects.iter().map(|subject| subject.shape.weight_bytes(precision)).max().unwrap_or(0)
}

fn varied(base: EncoderShape, at: usize) -> EncoderShape {
    EncoderShape { vocab: base.vocab.max(VOCABULARY_MIN), ffn: base.ffn + 64 * at, ..base }
}

fn one(shape: EncoderShape, at: usize, asked: &EncoderOptions) -> Result<Subject, Failure> {
    let name = format!("model-{at}");
    let texts = texts(&shape, at as u64);
    let computed = |precision| {
        let precision = PrecisionChoice::Exactly(precision);
        let options = EncoderOptions { precision, cpu_path: None, ..asked.clone() };
        vectors(&name, shape, &texts, &options)
    };
    let (right, rounded) = (computed(Precision::F32)?, computed(Precision::Bf16)?);
    let tolerance = Tolerance::measured(worst_cosine(&right, &rounded, shape.hidden));
    let pool = Pool::checked(texts.clone(), &right, shape.hidden, tolerance)
        .map_err(|error| Failure::Usage(error.to_string()))?;
    Ok(Subject { name, shape, pool })
}

fn vectors(name: &str, shape: EncoderShape, texts: &[Vec<u32>], options: &EncoderOptions) -> Result<Vec<f32>, Failure> {
    let opened = SingleDevice::open(&ModelSource::Synthetic(shape), DeviceName::Cpu, options);
    let mut model = opened.map_err(|reason| Failure::load(name, reason))?;
    Ok(model.run(&Work::from_ids(0, texts.to_vec()))?)
}

fn texts(shape: &EncoderShape, seed: u64) -> Vec<Vec<u32>> {
    let mut chance = SplitMix64::new(seed);
    let mut text = |_| {
        let tokens = 1 + chance.below(TOKENS_MAX.min(shape.positions));
        (0..tokens).map(|_| chance.below(shape.vocab) as u32).collect()
    };
    (0..TEXTS).map(&mut text).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use magray_load::Span;

    #[test]
    fn models_are_told_apart_by_their_answers() {
        let options = EncoderOptions { threads: Some(1), ..EncoderOptions::default() };
        let subjects = make("tiny".parse().unwrap(), 3, &options).unwrap();
        let exact = EncoderOptions { precision: PrecisionChoice::Exactly(Precision::F32), ..options };
        let span = Span { first: 2, count: 3 };
        let texts = subjects[1].pool.take(span);
        let values = vectors("one", subjects[1].shape, &texts, &exact).unwrap();
        assert!(subjects[1].pool.check(span, &values, Precision::F32).is_ok());
        let other = vectors("other", subjects[2].shape, &texts, &exact).unwrap();
        assert!(subjects[1].pool.check(span, &other, Precision::F32).is_err(), "another model's vectors passed");
        let bytes = bytes_max(&subjects, Precision::F32);
        assert!(bytes > 32_768 * 64 * 4 && bytes == subjects[2].shape.weight_bytes(Precision::F32));
    }
}
