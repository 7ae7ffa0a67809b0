//! A text alone, in a batch and elsewhere gives the same vector.

use crate::layer::{Batch, Encoder, Sizes};
use crate::rig::{Rig, Subject};

conforms!(
    a_text_alone_and_in_a_batch,
    a_text_alone_and_in_a_batch_of_a_real_model,
    the_same_batch_again_gives_the_same_bits,
    company_changes_no_bit,
    a_text_of_nan_changes_no_bit_of_others,
);

fn same<S: Subject>(rig: &Rig<S>, got: &[f32], want: &[f32], what: &str) {
    let error = got.iter().zip(want).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    let name = &rig.name;
    assert!(got.iter().all(|x| x.is_finite()), "{name}, {what}: not finite");
    assert!(error <= rig.subject.batch_tolerance(), "{name}, {what}: {error:.1e} apart");
}

fn alone_and_together<S: Subject>(rig: &mut Rig<S>, sizes: Sizes, lengths: &[usize]) {
    let encoder = Encoder::new(rig, sizes);
    let mut room = encoder.room(rig);
    let batch = Batch::new(rig, lengths);
    let together = encoder.run(rig, &mut room, &batch.tokens(), 0);
    for (text, length) in lengths.iter().enumerate() {
        let alone = encoder.run(rig, &mut room, &batch.only(text).tokens(), 0);
        same(rig, together.row(text), alone.row(0), &format!("text {text} of {length}"));
    }
    rig.move_elsewhere();
    let elsewhere = encoder.run(rig, &mut encoder.room(rig), &batch.tokens(), 0);
    for (text, length) in lengths.iter().enumerate() {
        same(rig, together.row(text), elsewhere.row(text), &format!("text {text} of {length} elsewhere"));
    }
}

fn a_text_alone_and_in_a_batch<S: Subject>(rig: &mut Rig<S>) {
    alone_and_together(rig, Sizes::ODD, &[7, 1, 200, 31, 33, 32, 2]);
}

fn a_text_alone_and_in_a_batch_of_a_real_model<S: Subject>(rig: &mut Rig<S>) {
    let (short, long) = ([5, 1], [128, 1, 63, 64, 65, 512, 17, 300]);
    let lengths = if rig.affords(long.iter().sum::<usize>() * Sizes::MODEL.token_cost()) { &long[..] } else { &short };
    alone_and_together(rig, Sizes::MODEL, lengths);
}

fn the_same_batch_again_gives_the_same_bits<S: Subject>(rig: &mut Rig<S>) {
    let encoder = Encoder::new(rig, Sizes::ODD);
    let mut room = encoder.room(rig);
    let (batch, other) = (Batch::new(rig, &[40, 3, 65]), Batch::new(rig, &[2, 150]));
    let first = encoder.run(rig, &mut room, &batch.tokens(), 1);
    encoder.run(rig, &mut room, &other.tokens(), 0);
    let again = encoder.run(rig, &mut room, &batch.tokens(), 1);
    assert_eq!(first.values, again.values, "{}", rig.name);
}

fn company_changes_no_bit<S: Subject>(rig: &mut Rig<S>) {
    let encoder = Encoder::new(rig, Sizes::ODD);
    let mut room = encoder.room(rig);
    let batch = Batch::new(rig, &[40, 3, 65, 1]);
    let vectors = encoder.run(rig, &mut room, &batch.tokens(), 0);
    for text in 0..vectors.len() {
        let other = batch.in_other_company(rig, text);
        let others = encoder.run(rig, &mut room, &other.tokens(), 0);
        assert_eq!(vectors.row(text), others.row(text), "{} text {text}", rig.name);
        for other in (0..vectors.len()).filter(|&other| other != text) {
            assert_ne!(vectors.row(other), others.row(other), "{}: text {other} is another", rig.name);
        }
    }
}

fn a_text_of_nan_changes_no_bit_of_others<S: Subject>(rig: &mut Rig<S>) {
    let encoder = Encoder::new(rig, Sizes::ODD);
    let mut room = encoder.room(rig);
    let batch = Batch::new(rig, &[40, 3, 65, 1]);
    let clean = encoder.run(rig, &mut room, &batch.tokens(), 0);
    for spoiled in 0..clean.len() {
        let vectors = encoder.run(rig, &mut room, &batch.spoiled(spoiled).tokens(), 0);
        let name = &rig.name;
        assert_ne!(vectors.row(spoiled), clean.row(spoiled), "{name}: NaN is in text {spoiled}");
        for text in (0..clean.len()).filter(|&text| text != spoiled) {
            assert_eq!(vectors.row(text), clean.row(text), "{name}: NaN of text {spoiled} reached text {text}");
        }
    }
    let again = encoder.run(rig, &mut room, &batch.tokens(), 0);
    assert_eq!(again.values, clean.values, "{}: NaN stayed", rig.name);
}
