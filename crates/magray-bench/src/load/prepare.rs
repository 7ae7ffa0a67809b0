//! Makes the pool of texts for a model, with their right vectors where answers are to be checked.
//! Computes them on the CPU in f32, the most exact way there is, before any load runs.

use magray_engine::{
    DeviceName, EncoderOptions, Precision, PrecisionChoice,
    engine::Work,
    synthetic::{self, Lengths, Vocabulary},
};

use magray_load::{Pool, Tolerance, worst_cosine};

use super::arguments::LoadArgs;
use crate::{failure::Failure, terminal::Console};

/// Enough that neighbours in a batch rarely are the same text.
const TEXTS: usize = 256;

/// Makes the pool. No text of it holds a planned poison.
pub(super) fn pool(args: &LoadArgs, console: Console) -> Result<Pool, Failure> {
    let asked = args.compute.options()?;
    let exact = EncoderOptions {
        precision: PrecisionChoice::Exactly(Precision::F32),
        // Whatever path is measured, the fastest one gives the same vectors.
        cpu_path: None,
        ..asked.clone()
    };
    let mut model = args.compute.open(DeviceName::Cpu, &exact)?;
    let (tokens, tokens_max) = (args.tokens as usize, model.spec().max_tokens);
    if !args.ragged && tokens > tokens_max {
        return Err(Failure::Usage(format!("--tokens {tokens}: this model reads at most {tokens_max}")));
    }
    let lengths = if args.ragged { Lengths::Ragged } else { Lengths::Equal(tokens) };
    let vocabulary = Vocabulary { size: model.spec().shape.vocab, tokens_max };
    let mut texts = synthetic::batch(TEXTS, lengths, &vocabulary);
    if let Some(poison) = args.poison() {
        texts.retain(|ids| !ids.contains(&poison.token));
    }
    if texts.is_empty() {
        return Err(Failure::Usage("every text holds the token of the planned poison: name another one".to_owned()));
    }
    if !args.check {
        return Ok(Pool::unchecked(texts));
    }
    let (work, dimensions, of) = (Work::from_ids(0, texts.clone()), model.spec().outputs(), texts.len());
    let right = model.run(&work)?;
    drop(model);
    let rounding = EncoderOptions { precision: PrecisionChoice::Exactly(coarsest(&asked)), ..exact };
    let rounded = args.compute.open(DeviceName::Cpu, &rounding)?.run(&work)?;
    let tolerance = Tolerance::measured(worst_cosine(&right, &rounded, dimensions));
    let pool =
        Pool::checked(texts, &right, dimensions, tolerance).map_err(|error| Failure::Usage(error.to_string()))?;
    if pool.len() < of {
        console.note(format_args!("{} of {of} texts are left out: they are too much like others", of - pool.len()));
    }
    Ok(pool)
}

/// The arithmetic of a CPU that rounds as much as any that may answer.
fn coarsest(options: &EncoderOptions) -> Precision {
    let of = |choice: PrecisionChoice| match choice {
        PrecisionChoice::Exactly(Precision::Int8) => Precision::Int8,
        // Automatic choice never settles on less than 16 bits, and of these bf16 rounds most.
        _ => Precision::Bf16,
    };
    let (cpu, gpu) = (of(options.precision), of(options.precision.or(options.gpu.precision)));
    if cpu == Precision::Int8 { cpu } else { gpu }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pool_suits_the_coarsest_arithmetic_that_may_answer() {
        let exactly = PrecisionChoice::Exactly;
        let of = |precision, gpu| {
            let mut options = EncoderOptions { precision, ..EncoderOptions::default() };
            options.gpu.precision = gpu;
            coarsest(&options)
        };
        let (auto, int8) = (PrecisionChoice::Auto, exactly(Precision::Int8));
        assert_eq!(of(auto, auto), Precision::Bf16);
        assert_eq!(of(exactly(Precision::F32), int8), Precision::Bf16, "the general setting wins");
        assert_eq!((of(int8, auto), of(auto, int8)), (Precision::Int8, Precision::Int8));
    }
}
