/**
 * JSON texts whose numbers may be 64-bit integers, as the JSON of Protocol Buffers has them: JSON.parse would round those beyond
 * 2^53, so they become strings before it sees them.
 */
const QUOTE = 0x22;
const BACKSLASH = 0x5c;
const MINUS = 0x2d;
/** Digits of which every integer is exact as a double; longer ones become strings. */
const EXACT_DIGITS = 15;

/** Integers too long for a double become strings, so that JSON.parse cannot round them; all else is untouched. */
export function quoteLongIntegers(text: string): string {
  let quoted = '';
  let copied = 0;
  let at = 0;
  while (at < text.length) {
    const code = text.charCodeAt(at);
    if (code === QUOTE) at = endOfString(text, at);
    else if (isDigit(code)) {
      const end = endOfDigits(text, at);
      const start = text.charCodeAt(at - 1) === MINUS ? at - 1 : at;
      if (end - at > EXACT_DIGITS && standsAlone(text, start, end)) {
        quoted += `${text.slice(copied, start)}"${text.slice(start, end)}"`;
        copied = end;
      }
      at = end;
    } else at++;
  }
  return copied === 0 ? text : quoted + text.slice(copied);
}

function endOfString(text: string, start: number): number {
  let at = start + 1;
  while (at < text.length && text.charCodeAt(at) !== QUOTE) {
    at += text.charCodeAt(at) === BACKSLASH ? 2 : 1;
  }
  return at + 1;
}

function endOfDigits(text: string, start: number): number {
  let at = start;
  while (at < text.length && isDigit(text.charCodeAt(at))) at++;
  return at;
}

function isDigit(code: number): boolean {
  return code >= 0x30 && code <= 0x39;
}

/** Digits, perhaps with a minus, that are a whole integer: no fraction, exponent or leading zero. */
function standsAlone(text: string, start: number, end: number): boolean {
  const before = text.charAt(start - 1);
  const after = text.charAt(end);
  const first = text.charCodeAt(start) === MINUS ? start + 1 : start;
  return (
    text.charAt(first) !== '0' && !'-+.eE'.includes(before || ' ') && !'.eE'.includes(after || ' ')
  );
}
