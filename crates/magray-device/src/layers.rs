//! The layers of a model as they come from its files, before a device packs them. Belongs to no device.

use crate::{Numbers, Table};

/// A linear layer as it comes from a file.
#[derive(Clone, Copy)]
pub struct LinearSource<'a> {
    /// `outputs` rows of `inputs` floats.
    pub weights: &'a [f32],
    /// Length of a row.
    pub inputs: usize,
    /// One for each row, or empty for none.
    pub bias: &'a [f32],
}

/// A linear layer whose numbers are read when a device wants them.
pub struct LinearNumbers {
    /// Layers of equal inputs whose outputs stand side by side, as query, key and value do. Each has rows of `inputs`
    /// numbers.
    pub weights: Vec<Numbers>,
    /// Length of a row.
    pub inputs: usize,
    /// One for each row of all layers, or empty for none.
    pub bias: Vec<f32>,
}

impl LinearNumbers {
    /// Rows of all layers.
    pub fn outputs(&self) -> usize {
        self.weights.iter().map(|weights| weights.len() / self.inputs.max(1)).sum()
    }
}

/// Gain and shift of a layer norm.
#[derive(Clone)]
pub struct Norm {
    /// Padded with zeros to whole panels of any device.
    pub(crate) gain: Vec<f32>,
    pub(crate) shift: Vec<f32>,
    pub(crate) columns: usize,
    pub(crate) epsilon: f32,
}

impl Norm {
    /// A norm of rows as long as `gain` and `shift`, which are equally long.
    pub fn new(mut gain: Vec<f32>, mut shift: Vec<f32>, epsilon: f32) -> Self {
        assert_eq!(gain.len(), shift.len(), "a shift for each gain");
        let columns = gain.len();
        let padded = columns.next_multiple_of(64);
        gain.resize(padded, 0.0);
        shift.resize(padded, 0.0);
        Self { gain, shift, columns, epsilon }
    }
}

/// The tables of a model's first layer.
pub struct Embedding {
    /// A row for each id.
    pub words: Table,
    /// A row for each position.
    pub positions: Table,
    /// A row for each token type; some models have none.
    pub types: Option<Table>,
    /// What follows the sum.
    pub norm: Norm,
    /// The position of a text's first token.
    pub first_position: usize,
}
