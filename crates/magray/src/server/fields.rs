//! The fields of control requests, as JSON, as a form, or as a multipart form (`curl -F`).
//! Bounded in bytes and fields; knows no field by name.

use axum::extract::{FromRequest, Multipart, Request, multipart::MultipartError};
use http::header;
use serde::Deserialize;

use super::{
    app::App,
    body::Body,
    errors::{Kind, Problem},
    requests::gpu::{FormError, form_or_json},
};

/// The fields of a request; an empty body has none.
pub(crate) struct Fields<T>(pub(crate) T);

const BYTES_MAX: usize = 64 << 10;
const FIELDS_MAX: usize = 16;

impl<T: for<'a> Deserialize<'a>> FromRequest<App> for Fields<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &App) -> Result<Self, Problem> {
        let (parts, body) = request.into_parts();
        let content_type = parts.headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
        let content_type = content_type.unwrap_or_default().to_ascii_lowercase();
        let body = Body::from_request(Request::from_parts(parts.clone(), body), app).await?;
        if body.len() > BYTES_MAX {
            return Err(Problem::new(
                Kind::TooLarge,
                format!("the fields of this request have {BYTES_MAX} bytes at most"),
            ));
        }
        if content_type.starts_with("multipart/form-data") && body.len() > 0 {
            let request = Request::from_parts(parts, axum::body::Body::from(body.shared()));
            return read(FORM, urlencoded(request).await?.as_bytes());
        }
        read(&content_type, body.bytes())
    }
}

const FORM: &str = "application/x-www-form-urlencoded";

fn read<T: for<'a> Deserialize<'a>>(content_type: &str, body: &[u8]) -> Result<Fields<T>, Problem> {
    form_or_json(content_type, body).map(Fields).map_err(|error| match error {
        FormError::Json(error) => error.into(),
        FormError::Form(_) => Problem::new(Kind::Invalid, error.to_string()),
    })
}

/// A multipart form as a URL-encoded one, so that both are read alike.
async fn urlencoded(request: Request) -> Result<String, Problem> {
    let mut form = Multipart::from_request(request, &())
        .await
        .map_err(|rejection| Problem::new(Kind::Malformed, rejection.body_text()))?;
    let mut fields: Vec<(String, String)> = Vec::new();
    while let Some(field) = form.next_field().await.map_err(malformed)? {
        let name = field.name().unwrap_or_default().to_owned();
        let value = field.bytes().await.map_err(malformed)?;
        let value = String::from_utf8(value.to_vec())
            .map_err(|_| Problem::new(Kind::Malformed, format!("the field '{name}' is no text in UTF-8")))?;
        if fields.len() >= FIELDS_MAX {
            return Err(Problem::new(Kind::TooLarge, format!("the form has more than {FIELDS_MAX} fields")));
        }
        fields.push((name, value));
    }
    serde_urlencoded::to_string(&fields).map_err(|error| Problem::new(Kind::Malformed, error.to_string()))
}

fn malformed(error: MultipartError) -> Problem {
    Problem::new(Kind::Malformed, format!("the form is broken: {}", error.body_text()))
}
