//! A parser of the Flux queries that the provider sends; it ignores white space.

/// The bucket and the measurements of a query; `None` for a query of another form.
pub(super) fn read(query: &str) -> Option<(String, Vec<String>)> {
    let (skeleton, mut texts) = texts(query)?;
    let measurements = texts.split_off(1);
    let tests = vec!["r._measurement==@"; measurements.len()].join("or");
    let expected = format!("from(bucket:@)|>range(start:-1h)|>filter(fn:(r)=>{tests})|>last()");
    (skeleton == expected && !measurements.is_empty()).then(|| (texts.remove(0), measurements))
}

/// The query without white space, each string literal an `@`, and the values of the literals.
fn texts(query: &str) -> Option<(String, Vec<String>)> {
    let (mut skeleton, mut texts) = (String::new(), Vec::new());
    let mut characters = query.chars();
    while let Some(character) = characters.next() {
        match character {
            '"' => {
                skeleton.push('@');
                texts.push(literal(&mut characters)?);
            }
            '@' => return None,
            _ if character.is_whitespace() => {}
            _ => skeleton.push(character),
        }
    }
    (!texts.is_empty()).then_some((skeleton, texts))
}

/// The rest of a string literal, up to its quote; `None` if it contains an expression (`${`).
fn literal(characters: &mut std::str::Chars<'_>) -> Option<String> {
    let mut text = Vec::new();
    loop {
        let character = characters.next()?;
        let meant = match character {
            '"' => return String::from_utf8(text).ok(),
            '$' if characters.clone().next() == Some('{') => return None,
            '\\' => match characters.next()? {
                escaped @ ('"' | '\\') => escaped,
                'n' => '\n',
                'r' => '\r',
                't' => '\t',
                'x' => {
                    let code: String = characters.by_ref().take(2).collect();
                    text.push(u8::from_str_radix(&code, 16).ok()?);
                    continue;
                }
                _ => return None,
            },
            _ => character,
        };
        text.extend(meant.encode_utf8(&mut [0; 4]).bytes());
    }
}
