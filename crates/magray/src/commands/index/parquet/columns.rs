//! Which columns of a file are what: as magray writes them, or as the user says.
//! Reads no rows.

use clap::Args;

use super::{ID, PAYLOAD, TEXT, VECTOR, vector_name};

/// The columns of a Parquet file that others have made.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct ColumnArgs {
    /// Column of a Parquet file with the ids [default: id; without it, the numbers of the rows]
    #[arg(long, value_name = "COLUMN")]
    id_column: Option<String>,
    /// Column of a Parquet file with the texts [default: text]
    #[arg(long, value_name = "COLUMN")]
    text_column: Option<String>,
    /// Column of a Parquet file with the vectors [default: vector, or embedding]
    #[arg(long, value_name = "COLUMN")]
    vector_column: Option<String>,
}

impl ColumnArgs {
    pub(crate) fn is_given(&self) -> bool {
        self.id_column.is_some() || self.text_column.is_some() || self.vector_column.is_some()
    }
}

/// What a column holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Id,
    Text,
    /// The payload as JSON, in magray's own files.
    Payload,
    /// The vector of this name.
    Vector(String),
    /// A field of the payload.
    Field,
}

/// The roles of columns, or what is missing.
pub(super) fn roles(columns: &[&str], args: &ColumnArgs, is_own: bool) -> Result<Vec<Role>, String> {
    if is_own {
        let role = |column: &&str| match *column {
            ID => Role::Id,
            TEXT => Role::Text,
            PAYLOAD => Role::Payload,
            column => vector_name(column).map_or(Role::Field, |name| Role::Vector(name.to_owned())),
        };
        return Ok(columns.iter().map(role).collect());
    }
    let listed = || columns.join(", ");
    let find = |given: &Option<String>, usual: &[&'static str]| match given {
        Some(name) if !columns.contains(&name.as_str()) => {
            Err(format!("there is no column '{name}'; there are {}", listed()))
        }
        Some(name) => Ok(Some(name.clone())),
        None => Ok(usual.iter().find(|name| columns.contains(name)).map(|name| (*name).to_owned())),
    };
    let (id, text) = (find(&args.id_column, &[ID])?, find(&args.text_column, &[TEXT])?);
    let vector = find(&args.vector_column, &[VECTOR, "embedding"])?;
    let missing = || format!("which column has the vectors? Name it with --vector-column; there are {}", listed());
    let vector = vector.ok_or_else(missing)?;
    let role = |column: &&str| match *column {
        column if column == vector => Role::Vector(String::new()),
        column if id.as_deref() == Some(column) => Role::Id,
        column if text.as_deref() == Some(column) => Role::Text,
        _ => Role::Field,
    };
    Ok(columns.iter().map(role).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_known_by_usual_names_or_by_those_that_are_given() {
        let none = ColumnArgs::default();
        let vector = || Role::Vector(String::new());
        assert_eq!(roles(&["id", "x", "embedding"], &none, false).unwrap(), [Role::Id, Role::Field, vector()]);
        let given = ColumnArgs {
            id_column: Some("key".to_owned()),
            text_column: Some("id".to_owned()),
            vector_column: Some("emb".to_owned()),
        };
        assert_eq!(roles(&["key", "id", "emb"], &given, false).unwrap(), [Role::Id, Role::Text, vector()]);
        assert!(roles(&["id"], &given, false).unwrap_err().contains("there is no column 'key'; there are id"));
        assert!(roles(&["id", "text"], &none, false).unwrap_err().contains("--vector-column"));
        let own = roles(&["id", "text", "payload", "vector", "vector.a"], &none, true).unwrap();
        assert_eq!(own, [Role::Id, Role::Text, Role::Payload, vector(), Role::Vector("a".to_owned())]);
    }
}
