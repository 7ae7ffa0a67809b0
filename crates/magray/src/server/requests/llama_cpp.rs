//! What clients of llama.cpp's server send.
//! Fields that are not named here have no meaning and are passed over.

use serde::Deserialize;

/// Tokens to turn into a text.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[schema(as = DetokenizeRequest)]
pub(crate) struct DetokenizeRequest {
    /// Ids of the model.
    pub(crate) tokens: Vec<u32>,
    /// Without it, the first model that generates.
    pub(crate) model: Option<String>,
}

/// What is an error where slots are shown.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct SlotsQuery {
    /// With any value: 503 where no slot is free.
    pub(crate) fail_on_no_slot: Option<String>,
}
