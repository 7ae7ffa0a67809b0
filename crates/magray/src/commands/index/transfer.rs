//! Points of a collection as files: JSON lines, Parquet, or vectors as a NumPy array with the rest as JSON lines beside it.
//! Holds one page at a time.

use std::{
    fs::File,
    io::{BufReader, Read},
    path::Path,
};

use serde_json::{Value, json};

use super::{
    Place,
    documents::point_lines,
    parquet::{ColumnArgs, PointsWriter, Rows as ParquetRows},
};
use crate::{
    commands::Context,
    exit::Failure,
    input::InputError,
    output::{Destination, Npy, Sink},
};

const PAGE: usize = 256;

pub(super) fn export(place: &Place<'_>, name: &str, output: Option<&Path>, context: &Context) -> Result<(), Failure> {
    if let Some(path) = output.filter(|path| has_ending(path, "parquet")) {
        return export_parquet(place, name, path, context);
    }
    let is_array = output.is_some_and(is_npy);
    let lines_path = output.map(|path| if is_array { path.with_extension("jsonl") } else { path.to_owned() });
    let mut offset = Value::Null;
    let (mut count, mut lines, mut array) = (0, None, None);
    loop {
        let body = json!({"limit": PAGE, "offset": offset, "with_payload": true, "with_vector": true});
        let (points, next) = place.scroll(name, &body)?;
        // Files are made when the collection is found to be there.
        if lines.is_none() {
            lines = Some(Destination::open(lines_path.as_deref())?);
            array = is_array.then(|| Npy::start(Sink::Once(Destination::open(output)?))).transpose()?;
        }
        let Some(out) = &mut lines else { unreachable!("it was opened") };
        for mut point in points {
            if let (Some(array), Some(point)) = (&mut array, point.as_object_mut()) {
                array.write_row(&dense(point.remove("vector"))?)?;
            }
            out.checked(|out| writeln!(out, "{point}"))?;
            count += 1;
        }
        if next.is_null() {
            break;
        }
        offset = next;
    }
    array.map_or(Ok(()), Npy::finish)?;
    lines.map_or(Ok(()), Destination::finish)?;
    context.console.note(format_args!("{count} points of {name}"));
    Ok(())
}

fn export_parquet(place: &Place<'_>, name: &str, path: &Path, context: &Context) -> Result<(), Failure> {
    let known = place.find(name)?.ok_or_else(|| magray_index::Error::no_collection(name))?;
    let mut writer = PointsWriter::start(Destination::open(Some(path))?, &known.settings)?;
    let (mut offset, mut count) = (Value::Null, 0);
    loop {
        let body = json!({"limit": PAGE, "offset": offset, "with_payload": true, "with_vector": true});
        let (points, next) = place.scroll(name, &body)?;
        count += points.len();
        points.into_iter().try_for_each(|point| writer.write(point))?;
        if next.is_null() {
            break;
        }
        offset = next;
    }
    writer.finish()?;
    context.console.note(format_args!("{count} points of {name}"));
    Ok(())
}

/// The only vector of a point, for an array.
fn dense(vector: Option<Value>) -> Result<Vec<f32>, Failure> {
    let read = vector.and_then(|vector| serde_json::from_value(vector).ok());
    read.ok_or_else(|| {
        let message =
            "an .npy array holds collections with one unnamed dense vector, which every point has: use .jsonl";
        Failure::Usage(message.to_owned())
    })
}

pub(super) fn import(
    mut place: Place<'_>,
    name: &str,
    (file, columns): (&Path, &ColumnArgs),
    context: &Context,
) -> Result<(), Failure> {
    let (mut points, settings) = points_of(file, columns)?;
    let mut is_there = place.find(name)?.is_some();
    let mut count = 0;
    loop {
        let mut page = Vec::with_capacity(PAGE);
        for point in points.by_ref().take(PAGE) {
            page.push(point?);
        }
        if page.is_empty() {
            break;
        }
        if !is_there {
            let settings = settings.clone().map_or_else(|| settings_like(&page[0]), Ok);
            place.create(name, settings?)?;
            is_there = true;
        }
        count += page.len();
        place.upsert(name, page)?;
    }
    place.finish()?;
    context.console.note(format_args!("{count} points are in {name}"));
    Ok(())
}

type Points = Box<dyn Iterator<Item = Result<Value, Failure>>>;

/// The points of a file, and the settings of the collection that they come from, where the file has them.
fn points_of(file: &Path, columns: &ColumnArgs) -> Result<(Points, Option<Value>), Failure> {
    if has_ending(file, "parquet") {
        let rows = ParquetRows::open(file, columns)?;
        let settings = rows.settings().cloned();
        return Ok((Box::new(rows), settings));
    }
    if columns.is_given() {
        return Err(Failure::Usage("columns are named of .parquet files alone".to_owned()));
    }
    if !is_npy(file) {
        return Ok((Box::new(point_lines(file)?), None));
    }
    let mut array = Rows::open(file)?;
    let lines = point_lines(&file.with_extension("jsonl"))?;
    let points = lines.map(move |point| {
        let mut point = point?;
        point["vector"] = json!(array.next()?);
        Ok(point)
    });
    Ok((Box::new(points), None))
}

/// Settings for points with the vectors that this one has.
fn settings_like(point: &Value) -> Result<Value, Failure> {
    let dense = |vector: &Value| match vector {
        Value::Array(rows) if rows.first().is_some_and(Value::is_array) => {
            let size = rows[0].as_array().map_or(0, Vec::len);
            Some(json!({"size": size, "distance": "Cosine", "multivector_config": {"comparator": "max_sim"}}))
        }
        Value::Array(numbers) => Some(json!({"size": numbers.len(), "distance": "Cosine"})),
        _ => None,
    };
    let vector = &point["vector"];
    if let Some(one) = dense(vector) {
        return Ok(json!({"vectors": one, "text_field": "text"}));
    }
    let named = vector.as_object().filter(|named| !named.is_empty());
    let named = named.ok_or_else(|| Failure::Usage("a point of the file has no vector".to_owned()))?;
    let (mut vectors, mut sparse) = (json!({}), json!({}));
    for (name, vector) in named {
        match dense(vector) {
            Some(one) => vectors[name] = one,
            None => sparse[name] = json!({}),
        }
    }
    Ok(json!({"vectors": vectors, "sparse_vectors": sparse, "text_field": "text"}))
}

fn is_npy(path: &Path) -> bool {
    has_ending(path, "npy")
}

fn has_ending(path: &Path, wanted: &str) -> bool {
    path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case(wanted))
}

/// The rows of a NumPy array of 32-bit floats, one after the other.
struct Rows {
    reader: BufReader<File>,
    dimensions: usize,
}

impl Rows {
    fn open(path: &Path) -> Result<Self, Failure> {
        let file = File::open(path).map_err(|reason| InputError::of_opening(path, reason))?;
        let mut reader = BufReader::new(file);
        let dimensions = head(&mut reader).ok_or_else(|| {
            Failure::Usage(format!("{}: no NumPy array of 32-bit floats with two dimensions", path.display()))
        })?;
        Ok(Self { reader, dimensions })
    }

    fn next(&mut self) -> Result<Vec<f32>, Failure> {
        let mut bytes = vec![0; self.dimensions * 4];
        let short = |_| Failure::Usage("the array has fewer rows than there are lines beside it".to_owned());
        self.reader.read_exact(&mut bytes).map_err(short)?;
        Ok(bytes.chunks_exact(4).map(|four| f32::from_le_bytes([four[0], four[1], four[2], four[3]])).collect())
    }
}

/// Reads the head of an array; the number of its columns.
fn head(reader: &mut impl Read) -> Option<usize> {
    const DIMENSIONS_MAX: usize = 1 << 16;
    let mut start = [0; 10];
    reader.read_exact(&mut start).ok()?;
    let mut text = vec![0; usize::from(u16::from_le_bytes([start[8], start[9]]))];
    reader.read_exact(&mut text).ok()?;
    let text = String::from_utf8(text).ok()?;
    let is_plain = start.starts_with(b"\x93NUMPY\x01")
        && text.contains("'descr': '<f4'")
        && text.contains("'fortran_order': False");
    let shape = text.split_once("'shape': (")?.1.split_once(')')?.0;
    let columns = shape.split(',').nth(1)?.trim().parse().ok()?;
    (is_plain && (1..=DIMENSIONS_MAX).contains(&columns)).then_some(columns)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_follow_the_vectors_of_a_point() {
        let of = |vector: Value| settings_like(&json!({ "vector": vector })).ok();
        assert_eq!(of(json!([1, 2])).unwrap()["vectors"], json!({"size": 2, "distance": "Cosine"}));
        let named = of(json!({"a": [[1, 2, 3]], "b": {"indices": [1], "values": [1]}})).unwrap();
        assert_eq!((&named["vectors"]["a"]["size"], &named["sparse_vectors"]["b"]), (&json!(3), &json!({})));
        assert!(of(json!({})).is_none() && of(json!(null)).is_none());
    }

    #[test]
    fn the_head_of_an_array_tells_its_columns() {
        let array =
            |head: &str| [b"\x93NUMPY\x01\x00", &(head.len() as u16).to_le_bytes()[..], head.as_bytes()].concat();
        let columns = |head_text: &str| head(&mut array(head_text).as_slice());
        assert_eq!(columns("{'descr': '<f4', 'fortran_order': False, 'shape': (3, 2), }"), Some(2));
        for wrong in [
            "{'descr': '<f8', 'fortran_order': False, 'shape': (3, 2), }",
            "{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }",
            "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 0), }",
        ] {
            assert_eq!(columns(wrong), None, "{wrong}");
        }
        assert_eq!(head(&mut &b"\x93NUM"[..]), None);
    }
}
