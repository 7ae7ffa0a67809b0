//! Reads the rows of a Parquet file as points, one after the other.
//! A file that is damaged gives a reason and ends; rows before the damage were given.

use std::{
    collections::HashMap,
    fs::File,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
};

use magray_index::PointId;
use parquet::{
    errors::ParquetError,
    file::reader::{FileReader, SerializedFileReader},
    record::{Field, Row, reader::RowIter},
};
use serde_json::{Map, Value, json};

use super::{
    ColumnArgs, SETTINGS,
    columns::{Role, roles},
    fields,
    limits::Limited,
};
use crate::{
    exit::Failure,
    input::InputError,
    qdrant::texts::{TEXT_FIELD, id_of},
};

/// Rows that the reader has in memory at a time.
const BATCH: usize = 64;

pub(crate) struct Rows {
    path: PathBuf,
    rows: RowIter<'static>,
    roles: Vec<Role>,
    settings: Option<Value>,
    text_field: String,
    /// Numbers of the vectors so far, by name.
    lengths: HashMap<String, usize>,
    /// The number of the last row, from 1.
    row: u64,
    has_ended: bool,
}

impl Rows {
    pub(crate) fn open(path: &Path, args: &ColumnArgs) -> Result<Self, Failure> {
        let file = File::open(path).map_err(|reason| InputError::of_opening(path, reason))?;
        let unreadable = |reason: String| InputError::NoParquet { path: path.to_owned(), reason };
        let open = || -> Result<_, ParquetError> { Ok(Box::new(SerializedFileReader::new(Limited::open(file)?)?)) };
        let reader = guarded(open).map_err(unreadable)?;
        let metadata = reader.metadata().file_metadata();
        let entries = metadata.key_value_metadata().into_iter().flatten();
        let settings = entries.filter(|entry| entry.key == SETTINGS).find_map(|entry| entry.value.as_deref());
        let settings: Option<Value> = settings.and_then(|text| serde_json::from_str(text).ok());
        let settings = settings.filter(|_| !args.is_given());
        let schema = metadata.schema();
        let columns: Vec<&str> = schema.get_fields().iter().map(|field| field.name()).collect();
        let roles = roles(&columns, args, settings.is_some());
        let roles = roles.map_err(|reason| Failure::Usage(format!("{}: {reason}", path.display())))?;
        let text_field = settings.as_ref().and_then(|settings| settings["text_field"].as_str());
        let text_field = text_field.unwrap_or(TEXT_FIELD).to_owned();
        let rows = RowIter::from_file_into(reader).with_batch_size(BATCH);
        let (path, lengths) = (path.to_owned(), HashMap::new());
        Ok(Self { path, rows, roles, settings, text_field, lengths, row: 0, has_ended: false })
    }

    /// The settings of the collection that the points come from, in a file of magray's own.
    pub(crate) fn settings(&self) -> Option<&Value> {
        self.settings.as_ref()
    }

    fn point(&mut self, row: &Row) -> Result<Value, String> {
        let (mut id, mut text, mut payload, mut vectors) = (None, None, Map::new(), Map::new());
        for ((name, field), role) in row.get_column_iter().zip(&self.roles) {
            let of_column = |reason: String| format!("column '{name}' {reason}");
            match role {
                Role::Id => id = Some(fields::value(field).map_err(of_column)?).filter(|id| !id.is_null()),
                Role::Text => text = Some(fields::value(field).map_err(of_column)?).filter(|text| !text.is_null()),
                Role::Payload => payload.extend(self.payload(field).map_err(of_column)?),
                Role::Vector(vector) => {
                    if let Some(own) = fields::vector(field).map_err(of_column)? {
                        for length in fields::lengths(&own) {
                            let first = *self.lengths.entry(vector.clone()).or_insert(length);
                            if first != length {
                                return Err(of_column(format!("has {length} numbers, and before it were {first}")));
                            }
                        }
                        vectors.insert(vector.clone(), own);
                    }
                }
                Role::Field => {
                    let value = fields::value(field).map_err(of_column)?;
                    if !value.is_null() {
                        payload.insert(name.clone(), value);
                    }
                }
            }
        }
        if let Some(text) = text {
            payload.insert(self.text_field.clone(), text);
        }
        let id = self.id(id, &mut payload);
        let vector = match vectors.remove("") {
            Some(one) if vectors.is_empty() && self.settings.is_none() => one,
            Some(one) => {
                vectors.insert(String::new(), one);
                Value::Object(vectors)
            }
            None => Value::Object(vectors),
        };
        Ok(json!({"id": id, "payload": payload, "vector": vector}))
    }

    fn payload(&self, field: &Field) -> Result<Map<String, Value>, String> {
        match field {
            Field::Null => Ok(Map::new()),
            Field::Str(text) => serde_json::from_str(text).map_err(|error| format!("is no JSON object: {error}")),
            Field::Bytes(bytes) => {
                serde_json::from_slice(bytes.data()).map_err(|error| format!("is no JSON object: {error}"))
            }
            _ => Err("is no JSON object".to_owned()),
        }
    }

    /// An id that no point can have stays in the payload, and another is made from it.
    fn id(&self, id: Option<Value>, payload: &mut Map<String, Value>) -> PointId {
        let Some(id) = id else { return PointId::Number(self.row - 1) };
        let read = match &id {
            Value::String(text) => text.parse().ok(),
            other => serde_json::from_value(other.clone()).ok(),
        };
        read.unwrap_or_else(|| {
            let own = id_of(&id.to_string());
            payload.entry("id").or_insert(id);
            own
        })
    }
}

impl Iterator for Rows {
    type Item = Result<Value, Failure>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.has_ended {
            return None;
        }
        self.row += 1;
        let point = guarded(|| {
            let Some(row) = self.rows.next() else { return Ok(None) };
            self.point(&row?).map(Some).map_err(ParquetError::General)
        });
        let (path, row) = (self.path.clone(), self.row);
        let point = point.map_err(|reason| Failure::Input(InputError::NoRow { path, row, reason })).transpose();
        self.has_ended = !matches!(point, Some(Ok(_)));
        point
    }
}

/// The reader gives up on some damaged files by a panic.
fn guarded<T>(read: impl FnOnce() -> Result<T, ParquetError>) -> Result<T, String> {
    match catch_unwind(AssertUnwindSafe(read)) {
        Ok(done) => done.map_err(|error| match error {
            ParquetError::General(reason) | ParquetError::EOF(reason) | ParquetError::NYI(reason) => reason,
            ParquetError::External(reason) => reason.to_string(),
            other => other.to_string(),
        }),
        Err(_) => Err("the file is damaged, or has values of a type that is not read".to_owned()),
    }
}
