//! Writes GGUF files, for tests.
//! Checks nothing: broken files are wanted too.

use magray_core::BlockFormat;

/// A file in the making.
#[derive(Clone, Default)]
pub(crate) struct Writer {
    values: Vec<(String, Vec<u8>)>,
    tensors: Vec<Line>,
    data: Vec<u8>,
}

/// A line of the table of tensors.
#[derive(Clone)]
struct Line {
    name: String,
    /// The innermost first.
    shape: Vec<u64>,
    number: u32,
    offset: u64,
}

fn with_length(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u64).to_le_bytes(), bytes].concat()
}

impl Writer {
    fn value(&mut self, key: &str, kind: u32, bytes: Vec<u8>) -> &mut Self {
        self.values.push((key.to_owned(), [kind.to_le_bytes().to_vec(), bytes].concat()));
        self
    }

    fn array(&mut self, key: &str, kind: u32, items: Vec<Vec<u8>>) -> &mut Self {
        let head = [kind.to_le_bytes().to_vec(), (items.len() as u64).to_le_bytes().to_vec()].concat();
        self.value(key, 9, [head, items.concat()].concat())
    }

    pub(crate) fn text(&mut self, key: &str, text: &str) -> &mut Self {
        self.value(key, 8, with_length(text.as_bytes()))
    }

    pub(crate) fn number(&mut self, key: &str, number: u32) -> &mut Self {
        self.value(key, 4, number.to_le_bytes().to_vec())
    }

    pub(crate) fn float(&mut self, key: &str, number: f32) -> &mut Self {
        self.value(key, 6, number.to_le_bytes().to_vec())
    }

    pub(crate) fn flag(&mut self, key: &str, flag: bool) -> &mut Self {
        self.value(key, 7, vec![u8::from(flag)])
    }

    pub(crate) fn texts(&mut self, key: &str, texts: &[&str]) -> &mut Self {
        self.array(key, 8, texts.iter().map(|text| with_length(text.as_bytes())).collect())
    }

    pub(crate) fn integers(&mut self, key: &str, numbers: &[i32]) -> &mut Self {
        self.array(key, 5, numbers.iter().map(|number| number.to_le_bytes().to_vec()).collect())
    }

    pub(crate) fn floats(&mut self, key: &str, numbers: &[f32]) -> &mut Self {
        self.array(key, 6, numbers.iter().map(|number| number.to_le_bytes().to_vec()).collect())
    }

    pub(crate) fn flags(&mut self, key: &str, flags: &[bool]) -> &mut Self {
        self.array(key, 7, flags.iter().map(|flag| vec![u8::from(*flag)]).collect())
    }

    /// An array of one empty array.
    pub(crate) fn nested(&mut self, key: &str) -> &mut Self {
        self.array(key, 9, vec![[4u32.to_le_bytes().to_vec(), 0u64.to_le_bytes().to_vec()].concat()])
    }

    /// A tensor of these sizes, the outermost first.
    pub(crate) fn tensor(&mut self, name: &str, format: BlockFormat, shape: &[usize], bytes: &[u8]) -> &mut Self {
        let number = match format {
            BlockFormat::F32 => 0,
            BlockFormat::F16 => 1,
            BlockFormat::Q4_0 => 2,
            BlockFormat::Q4_1 => 3,
            BlockFormat::Q5_0 => 6,
            BlockFormat::Q5_1 => 7,
            BlockFormat::Q8_0 => 8,
            BlockFormat::Q2K => 10,
            BlockFormat::Q3K => 11,
            BlockFormat::Q4K => 12,
            BlockFormat::Q5K => 13,
            BlockFormat::Q6K => 14,
            BlockFormat::Bf16 => 30,
        };
        self.tensor_of(name, number, shape, bytes)
    }

    /// As [`Writer::tensor`], with a form by its number.
    pub(crate) fn tensor_of(&mut self, name: &str, number: u32, shape: &[usize], bytes: &[u8]) -> &mut Self {
        self.data.resize(self.data.len().next_multiple_of(32), 0);
        let offset = self.data.len() as u64;
        self.data.extend_from_slice(bytes);
        self.at(name, number, shape, offset)
    }

    /// A line of the table of tensors alone.
    pub(crate) fn at(&mut self, name: &str, number: u32, shape: &[usize], offset: u64) -> &mut Self {
        let shape = shape.iter().rev().map(|size| *size as u64).collect();
        self.tensors.push(Line { name: name.to_owned(), shape, number, offset });
        self
    }

    /// The file.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut bytes = b"GGUF".to_vec();
        bytes.extend(3u32.to_le_bytes());
        bytes.extend((self.tensors.len() as u64).to_le_bytes());
        bytes.extend((self.values.len() as u64).to_le_bytes());
        for (key, value) in &self.values {
            bytes.extend(with_length(key.as_bytes()));
            bytes.extend(value);
        }
        for line in &self.tensors {
            bytes.extend(with_length(line.name.as_bytes()));
            bytes.extend((line.shape.len() as u32).to_le_bytes());
            bytes.extend(line.shape.iter().flat_map(|size| size.to_le_bytes()));
            bytes.extend(line.number.to_le_bytes());
            bytes.extend(line.offset.to_le_bytes());
        }
        bytes.resize(bytes.len().next_multiple_of(32), 0);
        bytes.extend(&self.data);
        bytes
    }
}
