//! How the rows of a model become the vectors of an answer: their length, and their first dimensions.
//! Computes nothing that the engine can.

use std::borrow::Cow;

use magray_engine::{engine::Output, spec::Task};

use super::{
    app::App,
    vectors::{cut, unit},
};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Scaling {
    /// Whether rows are brought to length 1 here: the model does not.
    is_scaled: bool,
    /// Whether the first dimensions of a row are brought to length 1 again.
    is_unit: bool,
    dimensions: Option<usize>,
}

impl Scaling {
    /// Vectors of length 1 if that is wanted, or not so; `None`: as the model has them. Tells what the engine is to compute.
    pub(crate) fn new(app: &App, model: usize, normalize: Option<bool>, dimensions: Option<usize>) -> (Self, Output) {
        let task = app.engine().spec(model).map(|spec| &spec.task);
        let has_unit_length = matches!(task, Some(Task::Embed(embed)) if embed.normalize);
        let output = if has_unit_length && normalize == Some(false) { Output::Unscaled } else { Output::Texts };
        let is_scaled = normalize == Some(true) && !has_unit_length;
        (Self { is_scaled, is_unit: normalize != Some(false), dimensions }, output)
    }

    pub(crate) fn apply<'a>(&self, row: &'a [f32]) -> Cow<'a, [f32]> {
        match self.dimensions.filter(|dimensions| *dimensions < row.len()) {
            Some(dimensions) if !self.is_unit => Cow::Borrowed(&row[..dimensions]),
            Some(_) => cut(row, self.dimensions),
            None if self.is_scaled => Cow::Owned(unit(row)),
            None => Cow::Borrowed(row),
        }
    }
}
