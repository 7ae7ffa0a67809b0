//! Answers that must be the same bits whenever the same device computes the same texts in the same batch.
//! Keeps the first one; knows nothing of what is right.

use std::collections::HashMap;

use magray_engine::{DeviceName, Precision, engine::Answer};

/// What determines the bits of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Question {
    pub(super) model: usize,
    /// Its first text, in the order of the pool.
    pub(super) first: usize,
    pub(super) texts: usize,
}

#[derive(Debug, Default)]
pub(super) struct FirstAnswers(HashMap<(Question, DeviceName, Precision), Vec<u32>>);

impl FirstAnswers {
    /// Whether an answer has the same bits as the first to this question. Answers from batches with other requests' texts are
    /// not compared: their sums may be in another order.
    pub(super) fn is_same(&mut self, question: Question, answer: &Answer) -> bool {
        if answer.batch_texts as usize != question.texts {
            return true;
        }
        let bits: Vec<u32> = answer.values.iter().map(|value| value.to_bits()).collect();
        let first = self.0.entry((question, answer.device, answer.precision)).or_insert_with(|| bits.clone());
        *first == bits
    }

    /// Questions that were asked of a device.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn answer(values: &[f32], device: DeviceName, batch_texts: u32) -> Answer {
        Answer {
            dimensions: values.len(),
            values: values.to_vec(),
            tokens: 1,
            device,
            precision: Precision::F32,
            batch_texts,
            queued: Duration::ZERO,
            computed: Duration::ZERO,
            replays: 0,
            fallback: None,
        }
    }

    #[test]
    fn one_bit_is_enough_and_another_device_or_batch_is_another_matter() {
        let mut first = FirstAnswers::default();
        let question = Question { model: 0, first: 3, texts: 1 };
        let (gpu, cpu) = (DeviceName::Simulated(0), DeviceName::Cpu);
        let near = f32::from_bits(1.0f32.to_bits() + 1);
        assert!(first.is_same(question, &answer(&[1.0, -0.0], gpu, 1)));
        assert!(first.is_same(question, &answer(&[1.0, -0.0], gpu, 1)));
        assert!(!first.is_same(question, &answer(&[near, -0.0], gpu, 1)));
        assert!(!first.is_same(question, &answer(&[1.0, 0.0], gpu, 1)));
        assert!(first.is_same(question, &answer(&[near, -0.0], gpu, 2)), "in another batch");
        assert!(first.is_same(question, &answer(&[near, -0.0], cpu, 1)));
        assert!(first.is_same(Question { model: 1, ..question }, &answer(&[near, -0.0], gpu, 1)));
        assert_eq!(first.len(), 3);
    }
}
