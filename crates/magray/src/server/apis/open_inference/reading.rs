//! Reads the tensors of a request as texts, and what is to be done with them.
//! Copies no text that is valid; refuses tensors whose shapes and bytes disagree.

use std::{borrow::Cow, time::Instant};

use http::HeaderMap;

use super::{JSON_LENGTH, answers::Head, find};
use crate::server::{
    app::App,
    errors::{Kind, Problem},
    inputs::{Documents, Input},
    models::Does,
    ranking::{Ranking, ReadRanking},
    requests::{
        self,
        open_inference::{InferRequest, Tensor},
    },
    scaling::Scaling,
    service::{ReadWork, Reading},
};

pub(super) enum Asked {
    Embed { read: ReadWork, scaling: Scaling },
    Classify { read: ReadWork },
    Rank { ranking: ReadRanking },
}

/// How many of the bytes of a body are JSON.
pub(super) fn json_bytes(headers: &HeaderMap, body_bytes: usize) -> Result<usize, Problem> {
    let Some(told) = headers.get(JSON_LENGTH) else { return Ok(body_bytes) };
    let told = told.to_str().ok().and_then(|told| told.trim().parse().ok());
    told.filter(|bytes| *bytes <= body_bytes).ok_or_else(|| {
        Problem::new(
            Kind::Malformed,
            format!("the header {JSON_LENGTH} is no length within the {body_bytes} bytes of the body"),
        )
    })
}

/// Reads a request: its JSON, and the bytes that follow.
pub(super) fn read(app: &App, name: &str, (json, bytes): (&[u8], &[u8])) -> Result<(Asked, Head), Problem> {
    let started = Instant::now();
    let request: InferRequest<'_> = requests::read(json)?;
    let (number, model) = find(app, name)?;
    let (query, texts) = texts_of(request.inputs, bytes)?;
    let parameters = &request.parameters;
    let how = Reading {
        model: number,
        param: "inputs",
        prompt: parameters.prompt_name.as_deref(),
        truncate: parameters.truncate,
    };
    let rows = texts.len();
    let (asked, output, shape) = match (query, model.does) {
        (Some(query), _) => {
            (Asked::Rank { ranking: app.read_ranking(Ranking { query, texts }, how)? }, "score", vec![rows])
        }
        (None, Does::Embed) => {
            model.check_dimensions(parameters.dimensions)?;
            let (scaling, output) = Scaling::new(app, number, parameters.normalize, parameters.dimensions);
            let mut read = app.read_input(Input::Texts { texts, is_single: false }, how)?;
            read.work.output = output;
            (Asked::Embed { read, scaling }, "embedding", vec![rows, parameters.dimensions.unwrap_or(model.outputs)])
        }
        (None, _) => {
            app.limits().check_texts("inputs", texts.iter().map(Cow::as_ref))?;
            let work = app.engine().read_scored(number, &texts)?;
            let read = app.check_work(work, how, started)?;
            (Asked::Classify { read }, "score", vec![rows, model.outputs])
        }
    };
    let mut is_binary = parameters.binary_data_output.unwrap_or(false);
    for wanted in &request.outputs {
        if wanted.name != output {
            let message =
                format!("there is no output '{}': this request has the output '{output}'", shown(&wanted.name));
            return Err(Problem::invalid("outputs", message));
        }
        if wanted.parameters.classification.is_some() {
            return Err(Problem::invalid("outputs", "classes by name are not made here: use /predict"));
        }
        is_binary = wanted.parameters.binary_data.unwrap_or(is_binary);
    }
    let head = Head::new(&model.name, request.id.as_deref(), output, &shape, is_binary);
    Ok((asked, head))
}

type Texts<'a> = Vec<Cow<'a, str>>;

/// The query, if there is one, and the texts. Bytes behind the JSON belong to the tensors in their order.
fn texts_of<'a>(inputs: Vec<Tensor<'a>>, mut bytes: &'a [u8]) -> Result<(Option<Cow<'a, str>>, Texts<'a>), Problem> {
    let (mut query, mut texts) = (None, None);
    for tensor in inputs {
        let name = tensor.name.clone();
        let read = texts_in(tensor, &mut bytes)?;
        let is_new = match &*name {
            "text" => texts.replace(read).is_none(),
            "query" => query.replace(read).is_none(),
            _ => {
                let message =
                    format!("there is no input '{}': send 'text', and to rank texts also 'query'", shown(&name));
                return Err(Problem::invalid("inputs", message));
            }
        };
        if !is_new {
            return Err(Problem::invalid("inputs", format!("the input '{name}' is there twice")));
        }
    }
    if !bytes.is_empty() {
        return Err(Problem::invalid("inputs", format!("{} bytes follow that belong to no input", bytes.len())));
    }
    let query = match query {
        None => None,
        Some(all) => match <[_; 1]>::try_from(all) {
            Ok([query]) => Some(query),
            Err(all) => return Err(Problem::invalid("inputs", format!("'query' is one text, and not {}", all.len()))),
        },
    };
    let texts = texts.ok_or_else(|| Problem::invalid("inputs", "there is no input 'text'"))?;
    if texts.is_empty() {
        return Err(Problem::new(Kind::Empty, "there is no text in the request").about("inputs"));
    }
    Ok((query, texts))
}

fn texts_in<'a>(tensor: Tensor<'a>, bytes: &mut &'a [u8]) -> Result<Texts<'a>, Problem> {
    let name = shown(&tensor.name);
    let wrong = |message: String| Problem::invalid("inputs", message);
    if tensor.datatype != "BYTES" {
        return Err(wrong(format!("'{name}' is {}: texts are BYTES", shown(&tensor.datatype))));
    }
    let count = match tensor.shape[..] {
        [count] | [count, 1] => count,
        _ => return Err(wrong(format!("'{name}' has the shape {:?}: texts are [n] or [n, 1]", tensor.shape))),
    };
    let texts = match (tensor.data, tensor.parameters.binary_data_size) {
        (Some(Documents(texts)), None) => texts,
        (None, Some(size)) => {
            let Some((own, rest)) = bytes.split_at_checked(size) else {
                return Err(wrong(format!(
                    "'{name}' has {size} bytes by its binary_data_size, and {} follow",
                    bytes.len()
                )));
            };
            *bytes = rest;
            elements(own)
                .ok_or_else(|| wrong(format!("the bytes of '{name}' are no texts in UTF-8 with their lengths")))?
        }
        (Some(_), Some(_)) => return Err(wrong(format!("'{name}' has both data and binary_data_size"))),
        (None, None) => return Err(wrong(format!("'{name}' has neither data nor binary_data_size"))),
    };
    if texts.len() as u64 != count {
        return Err(wrong(format!("'{name}' has {} texts, and {count} by its shape", texts.len())));
    }
    Ok(texts)
}

/// Texts, each after its length in 32 bits, the least byte first.
fn elements(mut bytes: &[u8]) -> Option<Texts<'_>> {
    let mut all = Vec::new();
    while !bytes.is_empty() {
        let (length, rest) = bytes.split_first_chunk()?;
        let (text, rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        all.push(Cow::Borrowed(std::str::from_utf8(text).ok()?));
        bytes = rest;
    }
    Some(all)
}

/// A client's own text, of any length.
fn shown(text: &str) -> String {
    text.chars().take(60).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn packed(texts: &[String]) -> Vec<u8> {
        texts.iter().flat_map(|text| [&(text.len() as u32).to_le_bytes()[..], text.as_bytes()].concat()).collect()
    }

    proptest! {
        #[test]
        fn texts_read_back_and_any_bytes_are_read_or_refused(texts in proptest::collection::vec(".{0,12}", 0..6), cut in 0_usize..40) {
            let bytes = packed(&texts);
            prop_assert_eq!(elements(&bytes).unwrap(), texts);
            let cut = cut.min(bytes.len());
            if let Some(read) = elements(&bytes[..cut]) {
                prop_assert!(packed(&read.iter().map(|text| text.to_string()).collect::<Vec<_>>()) == bytes[..cut]);
            }
        }
    }

    #[test]
    fn a_length_beyond_the_bytes_is_refused_without_taking_memory() {
        assert!(elements(&[255, 255, 255, 255, 1]).is_none());
        assert!(elements(&[1, 0, 0]).is_none());
        assert!(elements(&[1, 0, 0, 0, 255]).is_none());
    }

    #[test]
    fn the_length_of_the_json_is_within_the_body() {
        let headers =
            |value: &'static str| HeaderMap::from_iter([(JSON_LENGTH.parse().unwrap(), value.parse().unwrap())]);
        assert_eq!(json_bytes(&HeaderMap::new(), 10).unwrap(), 10);
        assert_eq!(json_bytes(&headers("7"), 10).unwrap(), 7);
        for wrong in ["11", "-1", "x", ""] {
            assert_eq!(json_bytes(&headers(wrong), 10).unwrap_err().kind, Kind::Malformed, "{wrong}");
        }
    }
}
