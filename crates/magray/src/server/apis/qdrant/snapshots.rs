//! Snapshots of collections: made, listed, deleted, and taken back.
//! Takes back only what was made here: no path or address of a client is opened.

use axum::{extract::State, response::Response};
use magray_index::Snapshot;
use serde_json::{Value, json};

use super::{Answer, Names, Timed};
use crate::{
    qdrant::collections::RecoverSnapshot,
    server::{app::App, body::Body, errors::Problem},
};

fn described(snapshot: &Snapshot) -> Value {
    json!({"name": snapshot.name, "size": snapshot.bytes, "creation_time": written_time(snapshot.created)})
}

/// A time of UTC, such as `2026-02-28T12:30:05`.
fn written_time(unix_s: u64) -> String {
    let (days, seconds) = (unix_s / 86_400, unix_s % 86_400);
    // Years are counted from March, so that a leap day is the last of its year; eras have 400 years.
    let shifted = days + 719_468;
    let (era, of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}")
}

/// Lists the snapshots of a collection, also of one that was deleted.
#[utoipa::path(
    get, path = "", operation_id = "list_snapshots",
    responses((status = 200, description = "The snapshots, the oldest first", body = Answer))
)]
pub(crate) async fn list(State(app): State<App>, Names(name): Names<String>) -> Result<Response, Problem> {
    let timed = Timed::start();
    app.collections()
        .with_all(move |all| Ok(timed.answer(&all.list_snapshots(&name)?.iter().map(described).collect::<Vec<_>>())))
        .await
}

/// Makes a snapshot of a collection. Changes go on meanwhile and are not in it.
#[utoipa::path(
    post, path = "", operation_id = "create_snapshot",
    responses((status = 200, description = "The snapshot", body = Answer))
)]
pub(crate) async fn create(State(app): State<App>, Names(name): Names<String>) -> Result<Response, Problem> {
    let timed = Timed::start();
    app.collections().with_all(move |all| Ok(timed.answer(&described(&all.create_snapshot(&name)?)))).await
}

/// Replaces a collection by one of its snapshots. `location` is the snapshot's name, or a path or address that ends with it.
#[utoipa::path(
    put, path = "", operation_id = "recover_from_snapshot",
    request_body = serde_json::Value,
    responses((status = 200, description = "It is replaced", body = Answer))
)]
pub(crate) async fn recover(
    State(app): State<App>,
    Names(name): Names<String>,
    body: Body,
) -> Result<Response, Problem> {
    let timed = Timed::start();
    let RecoverSnapshot { location } = body.json()?;
    app.collections()
        .with_all(move |all| {
            let name = all.resolve(&name);
            let snapshot = location.rsplit('/').next().unwrap_or_default();
            all.restore_snapshot(&name, &all.snapshot_path(&name, snapshot)?)?;
            Ok(timed.answer(&true))
        })
        .await
}

/// Deletes a snapshot.
#[utoipa::path(
    delete, path = "", operation_id = "delete_snapshot",
    responses((status = 200, description = "It is deleted", body = Answer))
)]
pub(crate) async fn delete(
    State(app): State<App>,
    Names((name, snapshot)): Names<(String, String)>,
) -> Result<Response, Problem> {
    let timed = Timed::start();
    app.collections()
        .with_all(move |all| {
            all.delete_snapshot(&name, &snapshot)?;
            Ok(timed.answer(&true))
        })
        .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_by_the_calendar() {
        assert_eq!(written_time(0), "1970-01-01T00:00:00");
        assert_eq!(written_time(951_782_400), "2000-02-29T00:00:00");
        assert_eq!(written_time(1_772_281_805), "2026-02-28T12:30:05");
    }
}
