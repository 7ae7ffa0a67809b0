//! OpenAI's files: uploaded, listed, shown, returned, deleted; for vector stores alone.
//! A file is answered when it is on the disk.

use axum::{
    Json,
    extract::{DefaultBodyLimit, FromRequest, Multipart, Request, State, multipart::MultipartError},
    response::{IntoResponse, Response},
};
use http::header;
use magray_index::Collections;

use crate::{
    qdrant::collections::Kept,
    server::{
        app::App,
        body::Body,
        errors::{Kind, OpenAiError, Problem},
        index_jobs::now,
        parameters::{Names, QueryFields},
        reservation,
    },
    vector_stores::{
        answers::{Deleted, File, Page},
        attached,
        ids::Of,
        page::{ListQuery, PageSize},
        uploaded::{self, Limits, UploadedFile},
    },
};

const PAGE: PageSize = PageSize { usual: 10_000, most: 10_000 };
const PURPOSES: [&str; 6] = ["assistants", "batch", "fine-tune", "vision", "user_data", "evals"];
const FILENAME_CHARS_MAX: usize = 255;
const FIELD_BYTES_MAX: usize = 1 << 10;
const FIELDS_MAX: usize = 16;
/// An hour to thirty days.
const EXPIRES_S: std::ops::RangeInclusive<u64> = 3_600..=2_592_000;

/// The form of an upload.
#[derive(utoipa::ToSchema)]
#[schema(as = UploadFileRequest)]
#[expect(dead_code, reason = "only its description is used")]
pub(crate) struct UploadForm {
    #[schema(value_type = String, format = Binary)]
    file: Vec<u8>,
    /// `assistants`, `user_data` and the like; it changes nothing.
    purpose: Option<String>,
    /// Seconds after which the file is deleted.
    #[schema(rename = "expires_after[seconds]")]
    expires_after_seconds: Option<u64>,
}

/// A form that was read.
#[derive(Default)]
pub(crate) struct Upload {
    file: Option<(String, Vec<u8>)>,
    purpose: Option<String>,
    expires_after: Option<u64>,
}

impl FromRequest<App> for Upload {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &App) -> Result<Self, Problem> {
        let (parts, body) = request.into_parts();
        let body = Body::from_request(Request::from_parts(parts.clone(), body), app).await?;
        let mut request = Request::from_parts(parts, axum::body::Body::from(body.shared()));
        // The bytes are here already, and were counted.
        DefaultBodyLimit::disable().apply(&mut request);
        let form = Multipart::from_request(request, &()).await;
        let mut form = form.map_err(|wrong| Problem::new(Kind::Malformed, wrong.body_text()))?;
        let mut upload = Self::default();
        for _ in 0..FIELDS_MAX {
            let Some(field) = form.next_field().await.map_err(malformed)? else { return Ok(upload) };
            let (name, filename) = (field.name().unwrap_or_default().to_owned(), field.file_name().map(str::to_owned));
            let value = field.bytes().await.map_err(malformed)?;
            if name == "file" {
                upload.file = Some((plain_name(&filename.unwrap_or_default()), value.to_vec()));
                continue;
            }
            let value = std::str::from_utf8(&value).ok().filter(|value| value.len() <= FIELD_BYTES_MAX);
            let value =
                value.ok_or_else(|| Problem::new(Kind::Malformed, format!("the field '{name}' is no short text")))?;
            upload.set(&name, value)?;
        }
        Err(Problem::new(Kind::TooLarge, format!("the form has more than {FIELDS_MAX} fields")))
    }
}

impl Upload {
    fn set(&mut self, name: &str, value: &str) -> Result<(), Problem> {
        match name {
            "purpose" if PURPOSES.contains(&value) => self.purpose = Some(value.to_owned()),
            "purpose" => {
                return Err(Problem::invalid("purpose", format!("purpose is one of {}", PURPOSES.join(", "))));
            }
            "expires_after[anchor]" if value != "created_at" => {
                return Err(Problem::invalid("expires_after", "expires_after.anchor is created_at"));
            }
            "expires_after[seconds]" => {
                let seconds = value.parse().ok().filter(|seconds| EXPIRES_S.contains(seconds));
                let wrong = || {
                    let (least, most) = (EXPIRES_S.start(), EXPIRES_S.end());
                    Problem::invalid("expires_after", format!("expires_after.seconds is {least} to {most}"))
                };
                self.expires_after = Some(seconds.ok_or_else(wrong)?);
            }
            _ => {}
        }
        Ok(())
    }
}

fn malformed(error: MultipartError) -> Problem {
    Problem::new(Kind::Malformed, format!("the form is broken: {}", error.body_text()))
}

/// The last part of a path, without what a name cannot show.
fn plain_name(name: &str) -> String {
    let last = name.rsplit(['/', '\\']).next().unwrap_or_default();
    let shown: String = last.chars().filter(|c| !c.is_control()).take(FILENAME_CHARS_MAX).collect();
    if shown.trim().is_empty() { "file".to_owned() } else { shown }
}

/// Uploads a file, for vector stores.
#[utoipa::path(
    post, path = "", operation_id = "create_file",
    request_body(content = UploadForm, content_type = "multipart/form-data"),
    responses((status = 200, description = "The file", body = File))
)]
pub(crate) async fn upload(State(app): State<App>, upload: Upload) -> Result<Json<File>, Problem> {
    let Upload { file, purpose, expires_after } = upload;
    let (filename, content) = file.ok_or_else(|| Problem::invalid("file", "the form has no file"))?;
    let (own, bytes) = (app.clone(), content.len());
    let stored = app.collections().with_all(move |all| {
        let _changing = own.indexing().change();
        let now = now();
        let number = std::iter::repeat_with(|| own.indexing().next_number());
        // A clock that went back may give out a number again.
        let mut free = number.take(FIELDS_MAX).filter(|number| matches!(uploaded::find(all, *number, 0), Ok(None)));
        let number = free.next().ok_or_else(|| Problem::new(Kind::Internal, "no id for the file was found"))?;
        let purpose = purpose.unwrap_or_else(|| PURPOSES[0].to_owned());
        let file =
            UploadedFile { number, filename, bytes, purpose, expires_at: expires_after.map(|after| now + after) };
        uploaded::put(all, &file, &content, Limits::default(), now)
            .map_err(|error| Problem::from(error).about("file"))?;
        Ok(file)
    });
    Ok(Json(stored.await?.into()))
}

/// Lists the uploaded files.
#[utoipa::path(
    get, path = "", operation_id = "list_files",
    params(ListQuery),
    responses((status = 200, description = "A page of them", body = Page<File>))
)]
pub(crate) async fn list(
    State(app): State<App>,
    QueryFields(query): QueryFields<ListQuery>,
) -> Result<Json<Page<File>>, Problem> {
    let listed = app.collections().with_all(move |all| {
        let mut files = uploaded::list(all, now())?;
        files.retain(|file| query.purpose.as_ref().is_none_or(|purpose| *purpose == file.purpose));
        Ok(query.page(files.into_iter().map(File::from).collect(), File::id, PAGE)?)
    });
    Ok(Json(listed.await?))
}

/// Shows an uploaded file.
#[utoipa::path(
    get, path = "", operation_id = "retrieve_file",
    responses(
        (status = 200, description = "The file", body = File),
        (status = 404, description = "No such file", body = OpenAiError),
    )
)]
pub(crate) async fn retrieve(State(app): State<App>, Names(id): Names<String>) -> Result<Json<File>, Problem> {
    Ok(Json(app.collections().with_all(move |all| find(all, &id)).await?.into()))
}

/// Returns the bytes of an uploaded file.
#[utoipa::path(
    get, path = "", operation_id = "download_file",
    responses(
        (status = 200, description = "Its bytes", body = String, content_type = "application/octet-stream"),
        (status = 404, description = "No such file", body = OpenAiError),
    )
)]
pub(crate) async fn content(State(app): State<App>, Names(id): Names<String>) -> Result<Response, Problem> {
    let admission = std::sync::Arc::clone(app.admission());
    let read = app.collections().with_all(move |all| {
        let file = find(all, &id)?;
        let held = admission.hold(file.bytes as u64)?;
        Ok((uploaded::content(all, &file)?, held))
    });
    let (content, held) = read.await?;
    reservation::keep_answer(held);
    Ok(([(header::CONTENT_TYPE, "application/octet-stream")], content).into_response())
}

/// Deletes an uploaded file, and takes it out of all vector stores.
#[utoipa::path(
    delete, path = "", operation_id = "delete_file",
    responses(
        (status = 200, description = "It is gone", body = Deleted),
        (status = 404, description = "No such file", body = OpenAiError),
    )
)]
pub(crate) async fn delete(State(app): State<App>, Names(id): Names<String>) -> Result<Json<Deleted>, Problem> {
    let (own, wanted) = (app.clone(), id.clone());
    let deleted = app.collections().with_all(move |all| {
        let _changing = own.indexing().change();
        let file = find(all, &wanted)?;
        for name in all.list().into_iter().filter(|name| Of::Store.number(name).is_some()) {
            // One that cannot be opened is left as it is.
            let Ok(store) = all.get(&name) else { continue };
            if Kept::of(&store.config()).store.is_some() {
                attached::delete(&store, &wanted)?;
            }
        }
        Ok(uploaded::delete(all, &file)?)
    });
    deleted.await?;
    Ok(Json(Deleted { id, object: "file", deleted: true }))
}

fn find(all: &Collections, id: &str) -> Result<UploadedFile, Problem> {
    let missing = || Problem::new(Kind::NotFound, format!("there is no file '{id}'"));
    let number = Of::File.number(id).ok_or_else(missing)?;
    uploaded::find(all, number, now())?.ok_or_else(missing)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_files_name_is_the_last_part_of_what_was_sent() {
        for (sent, name) in [
            ("a.txt", "a.txt"),
            ("../../etc/passwd", "passwd"),
            ("C:\\docs\\b.md", "b.md"),
            ("c\u{0}\n.txt", "c.txt"),
            ("", "file"),
            ("/", "file"),
        ] {
            assert_eq!(plain_name(sent), name, "{sent:?}");
        }
        assert_eq!(plain_name(&"é".repeat(999)).chars().count(), FILENAME_CHARS_MAX);
    }

    #[test]
    fn fields_of_an_upload_are_checked() {
        let set = |name: &str, value: &str| Upload::default().set(name, value).map_err(|problem| problem.param);
        for (name, value) in [
            ("purpose", "user_data"),
            ("expires_after[anchor]", "created_at"),
            ("expires_after[seconds]", "3600"),
            ("other", "x"),
        ] {
            set(name, value).unwrap();
        }
        for (name, value) in [
            ("purpose", "fun"),
            ("expires_after[anchor]", "now"),
            ("expires_after[seconds]", "1"),
            ("expires_after[seconds]", "x"),
        ] {
            assert!(set(name, value).unwrap_err().is_some(), "{name} {value}");
        }
    }
}
