//! A collection as a picture: places of its points, and the values of a field to colour them by.
//! One is made at a time, on a thread that may block. Numbers leave as bytes: as JSON they would be ten times as many.

use std::time::Duration;

use axum::{
    body::Body,
    extract::State,
    response::{IntoResponse, Response},
};
use http::{HeaderMap, header};
use magray_index::{JsonPath, MapRequest, PointId};
use serde::{Deserialize, Serialize};

use super::check_own_page;
use crate::server::{
    app::App,
    errors::{Kind, Problem},
    parameters::{Names, QueryFields},
};

/// Points of a picture at most.
const POINTS_MAX: usize = 200_000;
const POINTS: usize = 100_000;
/// Directions: two are drawn, all of them tell which points are neighbours.
const AXES: usize = 24;

/// Which points are drawn.
#[derive(Clone, Debug, Default, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct MapQuery {
    /// The name of the vector; without it, the one without a name.
    vector: String,
    /// At most this number of points; every n-th where there are more.
    #[param(minimum = 1, maximum = 200_000)]
    limit: Option<usize>,
    /// The field whose values are told.
    field: Option<String>,
}

/// What stands before the numbers.
#[derive(Serialize)]
struct MapHead {
    total: usize,
    axes: usize,
    shares: Vec<f32>,
    ids: Vec<PointId>,
}

#[derive(Serialize)]
struct ValuesHead {
    count: usize,
    names: Vec<String>,
}

/// Tells the places of points along the directions in which their vectors differ most: the length of a JSON head in 4 bytes, the
/// head (`total`, `axes`, `shares`, `ids`), spaces up to a multiple of 4, and for each point its numbers as 32-bit floats, little-endian.
#[utoipa::path(
    get, path = "", operation_id = "collection_map", params(MapQuery),
    responses((status = 200, description = "The places", body = Vec<u8>, content_type = "application/octet-stream"))
)]
pub(crate) async fn map(
    State(app): State<App>,
    Names(name): Names<String>,
    QueryFields(query): QueryFields<MapQuery>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    check_own_page(&headers)?;
    let request = query.request()?;
    let one = app.begin_map().ok_or_else(busy)?;
    app.collections()
        .with_one(name, move |collection| {
            // Also where the caller has left: another does not begin beside it.
            let _one = one;
            let map = collection.map(&request)?;
            let head = MapHead { total: map.total, axes: map.axes, shares: map.shares, ids: map.ids };
            answer(&head, map.places.iter().flat_map(|place| place.to_le_bytes()))
        })
        .await
}

/// Tells the values of a field for the points of a map, in their order: a head as that of the map (`count`, `names`), and for each
/// point the place of its value among the names in 16 bits, little-endian; 65535 where it has none of them.
#[utoipa::path(
    get, path = "", operation_id = "collection_values", params(MapQuery),
    responses((status = 200, description = "The values", body = Vec<u8>, content_type = "application/octet-stream"))
)]
pub(crate) async fn values(
    State(app): State<App>,
    Names(name): Names<String>,
    QueryFields(query): QueryFields<MapQuery>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    check_own_page(&headers)?;
    let request = query.request()?;
    let field: Option<JsonPath> = query.field.as_deref().map(str::parse).transpose()?;
    let one = app.begin_map().ok_or_else(busy)?;
    app.collections()
        .with_one(name, move |collection| {
            let _one = one;
            let Some(field) = field else { return answer(&ValuesHead { count: 0, names: Vec::new() }, []) };
            let found = collection.map_values(&request, &field)?;
            let head = ValuesHead { count: found.values.len(), names: found.names };
            answer(&head, found.values.iter().flat_map(|value| value.to_le_bytes()))
        })
        .await
}

impl MapQuery {
    fn request(&self) -> Result<MapRequest, Problem> {
        let limit = self.limit.unwrap_or(POINTS);
        if !(1..=POINTS_MAX).contains(&limit) {
            return Err(Problem::invalid("limit", format!("limit is from 1 to {POINTS_MAX}")));
        }
        Ok(MapRequest { vector: self.vector.clone(), limit, axes: AXES })
    }
}

fn busy() -> Problem {
    Problem::busy(Kind::Busy, "another picture is being made", Duration::from_secs(1))
}

fn answer<H: Serialize>(head: &H, numbers: impl IntoIterator<Item = u8>) -> Result<Response, Problem> {
    let failed = |error| Problem::new(Kind::Internal, format!("the answer could not be written: {error}"));
    let mut bytes = vec![0; 4];
    serde_json::to_writer(&mut bytes, head).map_err(failed)?;
    // Browsers read numbers only from where their own length divides.
    bytes.resize(bytes.len().next_multiple_of(4), b' ');
    let length = (bytes.len() - 4) as u32;
    bytes[..4].copy_from_slice(&length.to_le_bytes());
    bytes.extend(numbers);
    let headers = [(header::CONTENT_TYPE, "application/octet-stream"), (header::CACHE_CONTROL, "no-store")];
    Ok((headers, Body::from(bytes)).into_response())
}
