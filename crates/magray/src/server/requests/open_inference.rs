//! What clients of the v2 protocol send: named tensors, their texts in the JSON or behind it.
//! Fields that are not named here have no meaning and are passed over.

use std::borrow::Cow;

use serde::Deserialize;

use crate::server::inputs::Documents;

/// Tensors to compute with.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[schema(as = InferRequest)]
pub(crate) struct InferRequest<'a> {
    /// Comes back with the answer.
    #[serde(borrow, default)]
    pub(crate) id: Option<Cow<'a, str>>,
    /// `text`: the texts; to rank them, also `query`: one text.
    #[serde(borrow)]
    pub(crate) inputs: Vec<Tensor<'a>>,
    /// Without it, all that there is.
    #[serde(borrow, default)]
    pub(crate) outputs: Vec<Wanted<'a>>,
    #[serde(borrow, default)]
    pub(crate) parameters: Parameters<'a>,
}

/// A tensor of texts.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[schema(as = InferTensor)]
pub(crate) struct Tensor<'a> {
    #[serde(borrow)]
    pub(crate) name: Cow<'a, str>,
    /// `[n]` or `[n, 1]`.
    pub(crate) shape: Vec<u64>,
    /// `BYTES`.
    #[serde(borrow)]
    pub(crate) datatype: Cow<'a, str>,
    /// The texts, unless they follow the JSON.
    #[serde(borrow, default)]
    pub(crate) data: Option<Documents<'a>>,
    #[serde(default)]
    pub(crate) parameters: TensorParameters,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, utoipa::ToSchema)]
#[schema(as = InferTensorParameters)]
pub(crate) struct TensorParameters {
    /// Bytes of it behind the JSON: each text after its length in 32 bits, the least byte first.
    #[serde(default)]
    pub(crate) binary_data_size: Option<usize>,
}

/// An output that is wanted.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[schema(as = InferOutput)]
pub(crate) struct Wanted<'a> {
    /// `embedding` or `score`.
    #[serde(borrow)]
    pub(crate) name: Cow<'a, str>,
    #[serde(default)]
    pub(crate) parameters: WantedParameters,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, utoipa::ToSchema)]
#[schema(as = InferOutputParameters)]
pub(crate) struct WantedParameters {
    /// Whether its numbers follow the JSON, as 32-bit floats.
    #[serde(default)]
    pub(crate) binary_data: Option<bool>,
    /// Classes by name are not made: see /predict.
    #[serde(default)]
    pub(crate) classification: Option<u64>,
}

#[derive(Debug, Default, Deserialize, utoipa::ToSchema)]
#[schema(as = InferParameters)]
pub(crate) struct Parameters<'a> {
    /// Whether outputs that say nothing else follow the JSON.
    #[serde(default)]
    pub(crate) binary_data_output: Option<bool>,
    /// The prompt of the model that goes before each text.
    #[serde(borrow, default)]
    pub(crate) prompt_name: Option<Cow<'a, str>>,
    /// The first dimensions of vectors alone.
    #[serde(default)]
    #[schema(minimum = 1)]
    pub(crate) dimensions: Option<usize>,
    /// Scale vectors to length 1; without it, as the model has them.
    #[serde(default)]
    pub(crate) normalize: Option<bool>,
    /// Cut texts that are longer than the model reads; without it, as the server is set.
    #[serde(default)]
    pub(crate) truncate: Option<bool>,
}
