/** Text of any language in HTTP headers: servers read UTF-8, and Node writes Latin-1. */

const PRINTABLE = /^[\x20-\x7e\x80-\uffff]*$/;

/** Whether a header can carry the text: it has no control characters. */
export function isHeaderText(text: string): boolean {
  return PRINTABLE.test(text);
}

/** The UTF-8 bytes of the text as the string that Node writes as these bytes. */
export function encodeHeaderText(text: string): string {
  return Buffer.from(text).toString('latin1');
}
