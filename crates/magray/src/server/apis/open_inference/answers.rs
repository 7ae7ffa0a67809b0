//! Writes the answers of the v2 protocol: what a model takes and gives, and tensors of numbers.
//! Computes nothing, and reads no request.

use axum::response::Response;
use http::{HeaderValue, header};

use super::{JSON_LENGTH, VERSION};
use crate::server::{
    models::{Does, Model},
    writing::Json,
};

const PLATFORM: &str = "magray";

/// The JSON of an answer up to its numbers, which are known only when it was computed.
pub(super) struct Head {
    json: Json,
    is_binary: bool,
}

impl Head {
    pub(super) fn new(model: &str, id: Option<&str>, output: &str, shape: &[usize], is_binary: bool) -> Self {
        let mut json = Json::default();
        json.raw(r#"{"model_name":"#).text(model).raw(r#","model_version":"#).text(VERSION);
        if let Some(id) = id {
            json.raw(r#","id":"#).text(id);
        }
        json.raw(r#","outputs":[{"name":"#).text(output).raw(r#","datatype":"FP32","shape":"#).list(
            shape,
            |json, side| {
                json.whole(*side);
            },
        );
        if is_binary {
            let bytes = shape.iter().product::<usize>() * size_of::<f32>();
            json.raw(r#","parameters":{"binary_data_size":"#).whole(bytes).raw("}}]}");
        }
        Self { json, is_binary }
    }

    /// The length of the JSON where numbers follow it.
    pub(super) fn json_bytes(&self) -> Option<usize> {
        self.is_binary.then(|| self.json.len())
    }

    pub(super) fn written(self, rows: impl IntoIterator<Item = impl AsRef<[f32]>>) -> Json {
        let Self { mut json, is_binary } = self;
        if is_binary {
            for row in rows {
                json.bytes_of(row.as_ref());
            }
            return json;
        }
        let all: Vec<f32> = rows.into_iter().flat_map(|row| row.as_ref().to_vec()).collect();
        json.raw(r#","data":"#).numbers(&all).raw("}]}");
        json
    }

    /// Tells where the numbers begin.
    pub(super) fn with_length(mut answer: Response, json_bytes: Option<usize>) -> Response {
        if let Some(bytes) = json_bytes {
            let headers = answer.headers_mut();
            headers.insert(JSON_LENGTH, bytes.into());
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
        }
        answer
    }
}

/// The inputs that a model takes: their names, and whether they may be left out.
fn inputs(model: &Model) -> &'static [(&'static str, bool)] {
    match model.does {
        Does::Classify if model.outputs > 2 => &[("text", false)],
        Does::Rank => &[("query", false), ("text", false)],
        Does::Embed | Does::Classify | Does::Generate => &[("query", true), ("text", false)],
    }
}

/// The output of a request without a query, and the length of its rows.
fn output(model: &Model) -> (&'static str, Option<usize>) {
    match model.does {
        Does::Embed => ("embedding", Some(model.outputs)),
        Does::Classify => ("score", Some(model.outputs)),
        Does::Rank | Does::Generate => ("score", None),
    }
}

pub(super) fn described(model: &Model) -> Json {
    let mut json = Json::default();
    json.raw(r#"{"name":"#).text(&model.name).raw(r#","versions":["#).text(VERSION);
    json.raw(r#"],"platform":"#).text(PLATFORM).raw(r#","inputs":"#);
    json.list(inputs(model), |json, (name, _)| {
        let shape = if *name == "query" { "[1]" } else { "[-1]" };
        json.raw(r#"{"name":"#).text(name).raw(r#","datatype":"BYTES","shape":"#).raw(shape).raw("}");
    });
    let (name, columns) = output(model);
    json.raw(r#","outputs":[{"name":"#).text(name).raw(r#","datatype":"FP32","shape":[-1"#);
    if let Some(columns) = columns {
        json.raw(",").whole(columns);
    }
    json.raw("]}]}");
    json
}

pub(super) fn config_of(model: &Model) -> Json {
    let mut json = Json::default();
    json.raw(r#"{"name":"#)
        .text(&model.name)
        .raw(r#","platform":"#)
        .text(PLATFORM)
        .raw(r#","backend":"#)
        .text(PLATFORM);
    json.raw(r#","max_batch_size":0,"input":"#).list(inputs(model), |json, (name, is_optional)| {
        let dims = if *name == "query" { "[1]" } else { "[-1]" };
        json.raw(r#"{"name":"#).text(name).raw(r#","data_type":"TYPE_STRING","dims":"#).raw(dims);
        json.raw(if *is_optional { r#","optional":true}"# } else { "}" });
    });
    let (name, columns) = output(model);
    json.raw(r#","output":[{"name":"#).text(name).raw(r#","data_type":"TYPE_FP32","dims":[-1"#);
    if let Some(columns) = columns {
        json.raw(",").whole(columns);
    }
    json.raw("]}]}");
    json
}

pub(super) fn state_of(json: &mut Json, name: &str) {
    json.raw(r#"{"name":"#).text(name).raw(r#","version":"#).text(VERSION).raw(r#","state":"READY","reason":""}"#);
}
