//! A device under test in one of its variants, and the way of rows into its activations and out again.
//! Expects no values: the tests do.

use crate::rows::{Random, Rows, Tolerance};
use crate::texts::Texts;
use half::{bf16, f16};
use magray_core::{Pooling, Precision};
use magray_device::{
    Device, DistanceBias, Embedding, LinearSource, Norm, Ops, PoolShape, Rows as Size, Table, TokenBatch,
};

/// A device in one of its variants, and what may be expected of it.
pub(crate) trait Subject {
    type Device: Device;

    /// Multiply-adds of the largest case that fits this device's share of the time; see [`Rig::affords`].
    const AFFORDED: usize;

    fn device(&self) -> &Self::Device;

    /// The precision that layers are packed for.
    fn precision(&self) -> Precision;

    /// The number format of its activations.
    fn stored(&self) -> Stored;

    /// Operations that nothing was done with yet.
    fn ops(&self) -> OpsOf<Self>;

    /// Operations that do the same work elsewhere: on other threads, on another stream.
    fn other_ops(&self) -> OpsOf<Self>;

    /// Operations to put inputs in place with, so that those under test see nothing of it; none where activations
    /// belong to the operations that first wrote them.
    fn feeder(&self) -> Option<OpsOf<Self>>;

    /// How far a text's vector in a batch may be from the one it has alone.
    fn batch_tolerance(&self) -> f32;

    /// How inexact the functions after a product may be, as a part of their argument.
    fn function_tolerance(&self) -> f64;
}

pub(crate) type OpsOf<S> = <<S as Subject>::Device as Device>::Ops;
pub(crate) type ActsOf<S> = <OpsOf<S> as Ops>::Acts;
pub(crate) type LinearOf<S> = <OpsOf<S> as Ops>::Linear;
pub(crate) type NormOf<S> = <OpsOf<S> as Ops>::Norm;
pub(crate) type BiasOf<S> = <OpsOf<S> as Ops>::Bias;
pub(crate) type EmbeddingOf<S> = <OpsOf<S> as Ops>::Embedding;

/// The number format of activations.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Stored {
    F32,
    F16,
    Bf16,
}

impl Stored {
    /// The nearest number of the format.
    fn round(self, x: f32) -> f32 {
        match self {
            Self::F32 => x,
            Self::F16 => f16::from_f32(x).to_f32(),
            Self::Bf16 => bf16::from_f32(x).to_f32(),
        }
    }

    /// What a number of about `x` may be rounded by.
    pub(crate) fn rounding(self, x: f64) -> f64 {
        match self {
            Self::F32 => 0.0,
            Self::F16 => x.abs() / 2048.0,
            Self::Bf16 => x.abs() / 256.0,
        }
    }
}

/// One device under test.
pub(crate) struct Rig<S: Subject> {
    /// The variant and the seed, for messages.
    pub(crate) name: String,
    pub(crate) subject: S,
    pub(crate) ops: OpsOf<S>,
    feeder: Option<OpsOf<S>>,
    pub(crate) random: Random,
}

impl<S: Subject> Rig<S> {
    pub(crate) fn new(name: String, subject: S, seed: u64) -> Self {
        let (ops, feeder) = (subject.ops(), subject.feeder());
        Self { name, subject, ops, feeder, random: Random(seed) }
    }

    /// Whether a case of this many multiply-adds is for this device. Larger ones are for devices that are meant for them:
    /// each is checked by the same loops, which cost most of the time.
    pub(crate) fn affords(&self, multiply_adds: usize) -> bool {
        let affords = multiply_adds <= S::AFFORDED;
        if !affords {
            magray_skip::part(magray_skip::Need::FastDevice, "large cases are checked on a GPU");
        }
        affords
    }

    /// How exact activations are as they are stored, and what is done on them as they are.
    pub(crate) fn stored_tolerance(&self) -> Tolerance {
        match self.subject.stored() {
            Stored::F32 => Tolerance { row: 2.5e-6, element: 8e-6 },
            Stored::F16 => Tolerance { row: 7e-4, element: 3e-3 },
            Stored::Bf16 => Tolerance { row: 5e-3, element: 2e-2 },
        }
    }

    /// How exact products of this many inputs with weights are, which are rounded to the precision.
    pub(crate) fn product_tolerance(&self, inputs: usize) -> Tolerance {
        match self.subject.precision() {
            Precision::F32 => {
                // Each of the sum's terms is rounded once more.
                let longer = (inputs as f64 / 384.0).sqrt().max(1.0);
                Tolerance { row: 1.5e-6 * longer, element: 3e-6 * longer }
            }
            Precision::Tf32 => Tolerance { row: 1e-3, element: 2.5e-3 },
            Precision::F16 => Tolerance { row: 1e-3, element: 2.5e-3 },
            Precision::Bf16 => Tolerance { row: 8e-3, element: 1.5e-2 },
            Precision::Int8 => Tolerance { row: 4e-2, element: 8e-2 },
        }
    }

    /// Takes new operations, which nothing was done with yet.
    pub(crate) fn renew(&mut self) {
        self.ops = self.subject.ops();
    }

    /// Takes operations that do the same work elsewhere.
    pub(crate) fn move_elsewhere(&mut self) {
        self.ops = self.subject.other_ops();
    }

    /// Packs a layer for the rig's precision.
    pub(crate) fn linear(&self, source: LinearSource<'_>) -> LinearOf<S> {
        self.linear_in(source, self.subject.precision())
    }

    /// Packs a layer for another precision than the rig's.
    pub(crate) fn linear_in(&self, source: LinearSource<'_>, precision: Precision) -> LinearOf<S> {
        self.subject.device().linear(source, precision).expect("the layer is packed")
    }

    pub(crate) fn norm(&self, norm: Norm) -> NormOf<S> {
        self.subject.device().norm(norm).expect("the norm is packed")
    }

    pub(crate) fn bias(&self, bias: DistanceBias) -> BiasOf<S> {
        self.subject.device().bias(bias).expect("the bias is packed")
    }

    pub(crate) fn embedding(&self, embedding: Embedding) -> EmbeddingOf<S> {
        self.subject.device().embedding(embedding, self.subject.precision()).expect("the tables are packed")
    }

    /// Activations of this many rows that no operation has written yet.
    pub(crate) fn acts(&mut self, rows: usize, columns: usize) -> ActsOf<S> {
        self.acts_in(self.subject.precision(), rows, columns)
    }

    /// As [`Rig::acts`], for layers of another precision than the rig's.
    pub(crate) fn acts_in(&mut self, precision: Precision, rows: usize, columns: usize) -> ActsOf<S> {
        let mut acts = self.subject.device().acts(precision, columns);
        self.ops.resize(&mut acts, rows);
        acts
    }

    /// Random rows that activations hold exactly.
    pub(crate) fn exact_rows(&mut self, rows: usize, columns: usize) -> Rows {
        let mut exact = self.random.rows(rows, columns);
        exact.values.iter_mut().for_each(|x| *x = self.subject.stored().round(*x));
        exact
    }

    /// Fresh activations made of rows. See [`Rig::put_into`].
    pub(crate) fn put(&mut self, rows: &Rows, gain: f32) -> ActsOf<S> {
        let mut acts = self.acts(0, rows.columns);
        self.put_into(rows, gain, &mut acts);
        acts
    }

    /// Puts rows into activations, each as a text of one token, which normalises it to variance `gain` squared: what is
    /// there then is asked for with [`Rig::get`]. Rows of [`crate::poison::Poison`] come out as NaN or infinities.
    pub(crate) fn put_into(&mut self, rows: &Rows, gain: f32, acts: &mut ActsOf<S>) {
        let tables = self.tables_of(rows, gain);
        embed_rows(self.feeder.as_mut().unwrap_or(&mut self.ops), &tables, rows.len(), acts);
    }

    /// As [`Rig::put_into`], by the operations under test.
    pub(crate) fn embed_into(&mut self, rows: &Rows, acts: &mut ActsOf<S>) {
        let tables = self.tables_of(rows, 1.0);
        embed_rows(&mut self.ops, &tables, rows.len(), acts);
    }

    /// Tables that make row `i` of the token `i`.
    fn tables_of(&self, rows: &Rows, gain: f32) -> EmbeddingOf<S> {
        let columns = rows.columns;
        self.embedding(Embedding {
            words: Table::new(rows.values.clone(), columns),
            positions: Table::new(vec![0.0; columns], columns),
            types: None,
            norm: Norm::new(vec![gain; columns], vec![0.0; columns], 0.0),
            first_position: 0,
        })
    }

    /// The rows of activations: each is pooled as a text of one token, which widens it.
    pub(crate) fn get(&mut self, acts: &ActsOf<S>) -> Rows {
        let texts = Texts::new(&vec![1; acts.rows()]);
        self.pool(acts, &texts.batch(), PoolShape { ways: &[Pooling::Cls], skip: 0 })
    }

    /// Pools into fresh activations and reads them.
    pub(crate) fn pool(&mut self, acts: &ActsOf<S>, batch: &TokenBatch<'_>, shape: PoolShape<'_>) -> Rows {
        let columns = acts.columns() * shape.ways.len();
        let mut pooled = self.acts_in(Precision::F32, batch.texts(), columns);
        self.ops.pool(acts, batch, shape, &mut pooled);
        self.read(&pooled, false)
    }

    /// The rows of 32-bit activations.
    pub(crate) fn read(&mut self, acts: &ActsOf<S>, normalize: bool) -> Rows {
        self.ops.finish(acts, normalize);
        let values = self.ops.answer().expect("the device answers").to_vec();
        assert_eq!(values.len(), acts.rows() * acts.columns(), "{}: an answer as large as its rows", self.name);
        Rows::new(acts.columns(), values)
    }
}

fn embed_rows<O: Ops>(ops: &mut O, tables: &O::Embedding, rows: usize, acts: &mut O::Acts) {
    let texts = Texts::new(&vec![1; rows]);
    ops.resize(acts, rows);
    ops.embed(&texts.batch(), tables, acts);
}
