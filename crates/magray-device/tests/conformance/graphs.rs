//! Passes that are recorded for a bucket of batches and started again for later ones: their answers are those of the
//! operations done one by one. A GPU alone has such passes.

use crate::cuda::{CudaSubject, each_rig};
use crate::layer::{Batch, Encoder, Room, Sizes};
use crate::rig::{Rig, Subject};
use crate::rows::Rows;
use magray_device::Ops;
use magray_device::cuda::CudaOps;

/// Operations with an encoder of their own, as a model's stream has.
struct Stream {
    ops: CudaOps,
    room: Room<CudaSubject>,
}

impl Stream {
    fn new(rig: &Rig<CudaSubject>, encoder: &Encoder<CudaSubject>) -> Self {
        Self { ops: rig.subject.ops(), room: encoder.room(rig) }
    }

    /// Begins a pass; returns how often the work was asked for.
    fn start(&mut self, encoder: &Encoder<CudaSubject>, batch: &Batch, skip: usize) -> usize {
        let mut asked = 0;
        self.ops.pass(&batch.tokens(), skip, |ops| {
            asked += 1;
            encoder.forward(ops, &mut self.room, &batch.tokens(), skip);
        });
        asked
    }

    fn answer(&mut self, encoder: &Encoder<CudaSubject>) -> Rows {
        Rows::new(encoder.outputs(), self.ops.answer().expect("the device answers").to_vec())
    }

    /// A whole pass, whose answer must be that of the operations one by one, and whether it was recorded anew.
    fn check(
        &mut self,
        rig: &mut Rig<CudaSubject>,
        encoder: &Encoder<CudaSubject>,
        batch: &Batch,
        skip: usize,
    ) -> bool {
        let asked = self.start(encoder, batch, skip);
        let got = self.answer(encoder);
        let want = encoder.run(rig, &mut encoder.room(rig), &batch.tokens(), skip);
        assert_eq!(got.values, want.values, "{}: texts of {:?}, skip {skip}", rig.name, batch.lengths());
        assert!(got.values.iter().all(|x| x.is_finite()), "{}: finite", rig.name);
        asked > 0
    }
}

#[test]
fn a_pass_answers_as_its_operations_one_by_one() {
    each_rig(|rig| {
        for sizes in [Sizes::ODD, Sizes::MODEL] {
            let encoder = Encoder::new(rig, sizes);
            let mut stream = Stream::new(rig, &encoder);
            for lengths in [&[7, 1, 200, 31, 33, 32, 2][..], &[1], &[64], &[65, 63], &[512; 3], &[0, 3, 0]] {
                let batch = Batch::new(rig, lengths);
                stream.check(rig, &encoder, &batch, 0);
            }
        }
    });
}

#[test]
fn other_batches_of_a_bucket_are_not_recorded_again() {
    each_rig(|rig| {
        let encoder = Encoder::new(rig, Sizes::ODD);
        let mut stream = Stream::new(rig, &encoder);
        // Three texts, three blocks of queries, at most 64 tokens.
        let batches = [[40, 3, 20], [10, 30, 24], [1, 1, 1], [62, 1, 1], [2, 1, 61]];
        let batches = batches.map(|lengths| Batch::new(rig, &lengths));
        assert!(stream.check(rig, &encoder, &batches[0], 0), "{}: the first is recorded", rig.name);
        for skip in [0, 1, 2] {
            for batch in &batches {
                assert!(!stream.check(rig, &encoder, batch, skip), "{}: {:?} is replayed", rig.name, batch.lengths());
            }
        }
    });
}

#[test]
fn a_bucket_is_used_again_after_others() {
    each_rig(|rig| {
        let encoder = Encoder::new(rig, Sizes::MODEL);
        let mut stream = Stream::new(rig, &encoder);
        // The largest first: nothing has to grow later.
        let shapes = [&[300, 300, 300][..], &[20, 30], &[128], &[1; 40]];
        for _ in 0..2 {
            for lengths in shapes {
                let batch = Batch::new(rig, lengths);
                stream.check(rig, &encoder, &batch, 0);
            }
        }
        for lengths in shapes.into_iter().rev() {
            let batch = Batch::new(rig, lengths);
            assert!(!stream.check(rig, &encoder, &batch, 0), "{}: {lengths:?} is known", rig.name);
        }
    });
}

#[test]
fn buffers_that_grow_leave_no_recording_of_the_old_ones() {
    each_rig(|rig| {
        let encoder = Encoder::new(rig, Sizes::MODEL);
        let mut stream = Stream::new(rig, &encoder);
        // Rows grow, then texts and with them the answer, then blocks.
        for lengths in [&[20, 30][..], &[300, 200], &[20, 30], &[1; 600], &[10, 50], &[512; 8], &[30, 20], &[300, 200]]
        {
            let batch = Batch::new(rig, lengths);
            stream.check(rig, &encoder, &batch, 1);
            stream.check(rig, &encoder, &batch, 0);
        }
    });
}

#[test]
fn an_empty_batch_is_recorded_for_one_text_as_well() {
    each_rig(|rig| {
        let encoder = Encoder::new(rig, Sizes::ODD);
        let mut stream = Stream::new(rig, &encoder);
        for lengths in [&[][..], &[9], &[], &[0], &[64]] {
            let batch = Batch::new(rig, lengths);
            stream.check(rig, &encoder, &batch, 0);
        }
    });
}

#[test]
fn operations_between_passes_change_neither() {
    each_rig(|rig| {
        let encoder = Encoder::new(rig, Sizes::ODD);
        let mut stream = Stream::new(rig, &encoder);
        let (batch, other) = (Batch::new(rig, &[5, 40, 3]), Batch::new(rig, &[33, 2]));
        stream.check(rig, &encoder, &batch, 1);
        encoder.forward(&mut stream.ops, &mut stream.room, &other.tokens(), 0);
        let got = stream.answer(&encoder);
        let want = encoder.run(rig, &mut encoder.room(rig), &other.tokens(), 0);
        assert_eq!(got.values, want.values, "{}: after a pass", rig.name);
        stream.check(rig, &encoder, &batch, 1);
    });
}

#[test]
fn two_streams_do_not_disturb_each_other() {
    each_rig(|rig| {
        let encoder = Encoder::new(rig, Sizes::MODEL);
        let mut streams = [Stream::new(rig, &encoder), Stream::new(rig, &encoder)];
        let batches = [&[300, 20, 1, 128][..], &[65, 64, 512]].map(|lengths| Batch::new(rig, lengths));
        let wanted = batches.each_ref().map(|batch| encoder.run(rig, &mut encoder.room(rig), &batch.tokens(), 0));
        for round in 0..20 {
            for (stream, batch) in streams.iter_mut().zip(&batches) {
                stream.start(&encoder, batch, 0);
            }
            for (stream, want) in streams.iter_mut().zip(&wanted) {
                assert_eq!(stream.answer(&encoder).values, want.values, "{} round {round}", rig.name);
            }
        }
    });
}

#[test]
fn nan_is_gone_with_the_pass_that_had_it() {
    each_rig(|rig| {
        let encoder = Encoder::new(rig, Sizes::MODEL);
        let mut stream = Stream::new(rig, &encoder);
        // The spoiled batch fills its bucket; the next leaves rows of it unwritten.
        let (large, small) = (Batch::new(rig, &[64, 64]), Batch::new(rig, &[63, 2]));
        stream.check(rig, &encoder, &small, 0);
        stream.start(&encoder, &large.spoiled(1), 0);
        let spoiled = stream.answer(&encoder);
        stream.start(&encoder, &large, 0);
        let clean = stream.answer(&encoder);
        assert_eq!(spoiled.row(0), clean.row(0), "{}: the other text is as ever", rig.name);
        assert_ne!(spoiled.row(1), clean.row(1), "{}: the text had NaN", rig.name);
        stream.start(&encoder, &large.spoiled(1), 0);
        stream.answer(&encoder);
        stream.check(rig, &encoder, &small, 0);
    });
}
