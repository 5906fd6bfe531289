/** Formats an HTTP/1.1 response as node:http does: head and body in one text, for one write. */
import { STATUS_CODES } from 'node:http';
import { wallClockMs } from '../platform/clock.ts';
import type { HttpResponse } from './direct-routes.ts';

export interface ResponseText {
  readonly text: string;
  readonly encoding: 'latin1' | 'utf8';
  readonly bodyBytes: number;
}

let dateSecond = -1;
let dateLine = '';

/**
 * @param response a header `connection` replaces `Connection: keep-alive`
 * @param first headers that come before those of the response
 */
export function formatResponseText(
  { status = 200, type, headers, body }: HttpResponse,
  first: ReadonlyMap<string, string> | undefined,
): ResponseText {
  const isText = typeof body === 'string';
  const bodyBytes = isText ? Buffer.byteLength(body) : body.length;
  let head = `HTTP/1.1 ${status} ${STATUS_CODES[status]}\r\n`;
  for (const [name, value] of first ?? []) head += `${name}: ${value}\r\n`;
  head += `content-type: ${type}\r\ncontent-length: ${bodyBytes}\r\n`;
  for (const name in headers) head += `${name}: ${headers[name]}\r\n`;
  head += formatDateLine();
  if (headers?.['connection'] === undefined) head += 'Connection: keep-alive\r\n';
  const isAscii = !isText || bodyBytes === body.length;
  return {
    text: `${head}\r\n${isText ? body : body.toString('latin1')}`,
    encoding: isAscii ? 'latin1' : 'utf8',
    bodyBytes,
  };
}

function formatDateLine(): string {
  const second = Math.floor(wallClockMs() / 1_000);
  if (second !== dateSecond) {
    dateSecond = second;
    dateLine = `Date: ${new Date(second * 1_000).toUTCString()}\r\n`;
  }
  return dateLine;
}
