import assert from 'node:assert/strict';
import { test } from 'node:test';
import { WireReader, WireWriter } from '../../proto/wire.ts';

function readStrings(bytes: Uint8Array): string[] {
  const reader = new WireReader(bytes);
  const texts: string[] = [];
  while (reader.next()) texts.push(reader.string());
  return texts;
}

test('messages that are written at the same time do not mix', () => {
  const writers = Array.from({ length: 100 }, (_, i) => new WireWriter(i));
  for (let field = 1; field < 30; field++) {
    writers.forEach((writer, i) => {
      writer.string(field, `${i}/${field}`);
    });
  }
  const messages = writers.map((writer) => writer.finish());
  messages.forEach((message, i) => {
    const expected = Array.from({ length: 29 }, (_, field) => `${i}/${field + 1}`);
    assert.deepEqual(readStrings(message), expected);
  });
});

test('texts are read as UTF-8, from a Buffer too', () => {
  const texts = ['', 'a', 'slot_1', 'é', 'ab\u{1f600}', 'x'.repeat(65), `${'y'.repeat(80)}ü`];
  const writer = new WireWriter();
  for (const text of texts) writer.string(1, text);
  assert.deepEqual(readStrings(writer.finish()), texts);
  assert.deepEqual(readStrings(Buffer.from(writer.finish())), texts);
});
