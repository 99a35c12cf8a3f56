//! The members of a JSON object in their order, each value as the bytes that it was sent as.

use super::Fault;
use super::values::unquoted;
use crate::json_members;
use bytes::Bytes;
use serde::de::IgnoredAny;
use std::collections::HashMap;

/// Members up to which each name is looked for among all before it.
const FEW: usize = 32;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Members(pub Vec<(String, Bytes)>);

impl Members {
    /// The members of the object that is all of `body`.
    ///
    /// # Errors
    /// The body is not valid JSON, or no object.
    pub fn parse(body: &Bytes) -> Result<Self, Fault> {
        serde_json::from_slice::<IgnoredAny>(body).map_err(|_| Fault::Unreadable)?;
        Self::of(body)?.ok_or(Fault::Unreadable)
    }

    /// The members of a value that is valid JSON, of several of a name the last; None where it is no object.
    ///
    /// # Errors
    /// A name is no text.
    pub fn of(value: &Bytes) -> Result<Option<Self>, Fault> {
        if value.iter().find(|byte| !byte.is_ascii_whitespace()) != Some(&b'{') {
            return Ok(None);
        }
        let ranges = json_members::members(value).ok_or(Fault::Unreadable)?;
        let mut members = Vec::with_capacity(ranges.len() + 4);
        for member in ranges {
            let quoted = member.name.start - 1..member.name.end + 1;
            let name = unquoted(&value[quoted]).ok_or(Fault::Unreadable)?.into_owned();
            members.push((name, value.slice(member.value)));
        }
        Ok(Some(Self(unique(members))))
    }

    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Bytes> {
        self.0.iter().find(|member| member.0 == name).map(|member| &member.1)
    }

    /// A member that is not null.
    #[must_use]
    pub fn given(&self, name: &str) -> Option<&Bytes> {
        self.get(name).filter(|value| **value != b"null"[..])
    }

    /// Set a member, at its place where it is there already.
    pub fn set(&mut self, name: &str, value: impl Into<Bytes>) {
        match self.0.iter_mut().find(|member| member.0 == name) {
            Some(member) => member.1 = value.into(),
            None => self.0.push((name.to_owned(), value.into())),
        }
    }

    pub fn keep(&mut self, kept: impl Fn(&str) -> bool) {
        self.0.retain(|member| kept(&member.0));
    }

    /// The object as JSON.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let size: usize = self.0.iter().map(|(name, value)| name.len() + value.len() + 4).sum();
        let mut body = Vec::with_capacity(size + 2);
        body.push(b'{');
        for (name, value) in &self.0 {
            if body.len() > 1 {
                body.push(b',');
            }
            body.extend_from_slice(&quoted(name));
            body.push(b':');
            body.extend_from_slice(value);
        }
        body.push(b'}');
        body
    }
}

/// A text as JSON.
pub(super) fn quoted(text: &str) -> Vec<u8> {
    serde_json::to_vec(text).unwrap_or_default()
}

fn unique(members: Vec<(String, Bytes)>) -> Vec<(String, Bytes)> {
    let repeated = |at: usize| members[..at].iter().any(|member| member.0 == members[at].0);
    if members.len() <= FEW && !(1..members.len()).any(repeated) {
        return members;
    }
    let mut places: HashMap<String, usize> = HashMap::with_capacity(members.len());
    let mut kept: Vec<(String, Bytes)> = Vec::with_capacity(members.len());
    for (name, value) in members {
        if let Some(&at) = places.get(&name) {
            kept[at].1 = value;
        } else {
            places.insert(name.clone(), kept.len());
            kept.push((name, value));
        }
    }
    kept
}
