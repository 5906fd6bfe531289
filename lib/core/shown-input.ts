/**
 * Input of callers in errors. It may be megabytes long, so only its beginning is repeated; several
 * pieces in one error have at most 200 bytes together.
 */

/** Bytes of a value or a name. */
const SHOWN_BYTES_MAX = 64;

/** Returns the text if it is short, else its beginning and `...`. Lengths are in bytes of UTF-8. */
export function shortenInput(text: string, bytesMax: number = SHOWN_BYTES_MAX): string {
  let bytes = 0;
  for (let i = 0; i < text.length; i++) {
    const code = text.charCodeAt(i);
    bytes += code < 0x80 ? 1 : code < 0x800 ? 2 : 3;
    if (bytes > bytesMax) {
      // A surrogate pair is not cut in half.
      const isHalf = i > 0 && (text.charCodeAt(i - 1) & 0xfc00) === 0xd800;
      return `${text.slice(0, isHalf ? i - 1 : i)}...`;
    }
  }
  return text;
}

/** The text in double quotes, with escapes, shortened. */
export function quoteInput(text: string): string {
  // No more of the text than can be shown is escaped.
  const quoted = JSON.stringify(text.slice(0, SHOWN_BYTES_MAX + 1));
  const shown = shortenInput(quoted);
  return shown === quoted ? quoted : `${shown}"`;
}
