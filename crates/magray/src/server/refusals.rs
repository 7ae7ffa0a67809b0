//! How requests can be refused, for the document of the routes: alike in each API, in the shape of its errors.
//! Refuses nothing itself.

use super::errors::{CohereError, OllamaError, OpenAiError, PlainError, TeiError};

macro_rules! refusals {
    ($(#[$about:meta])* $name:ident: $error:ident $(, $(#[$extra_about:meta])* $extra:ident)?) => {
        $(#[$about])*
        #[derive(utoipa::IntoResponses)]
        #[expect(dead_code, reason = "only its description is used")]
        pub(crate) enum $name {
            /// The body is no JSON, or without any text where the API has this status for it.
            #[response(status = 400)]
            Malformed($error),
            /// There is no key, or a wrong one.
            #[response(status = 401)]
            Unauthorised($error),
            $($(#[$extra_about])* $extra($error),)?
            /// There is no such model.
            #[response(status = 404)]
            NoSuchModel($error),
            /// The body came too slowly.
            #[response(status = 408)]
            TooSlow($error),
            /// It is too much for one request.
            #[response(status = 413)]
            TooLarge($error),
            /// A field is wrong, or the model does something else.
            #[response(status = 422)]
            Invalid($error),
            /// There is too much to do, or the key asked too often: see Retry-After.
            #[response(status = 429)]
            Busy($error),
            /// No device computes, or not in time.
            #[response(status = 503)]
            Unavailable($error),
        }
    };
}

refusals! {
    /// In the shape of OpenAI's API.
    OpenAiProblems: OpenAiError
}
refusals! {
    /// In the shape of TEI's API.
    TeiProblems: TeiError
}
refusals! {
    /// In the shape of Cohere's API.
    CohereProblems: CohereError
}
refusals! {
    /// In the shape of Ollama's API.
    OllamaProblems: OllamaError
}
refusals! {
    /// In magray's own shape, for requests that change something.
    PlainProblems: PlainError,
    /// The key is not an administrator's.
    #[response(status = 403)]
    Forbidden
}
