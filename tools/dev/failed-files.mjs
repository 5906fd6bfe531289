/** A reporter of node:test that writes the file of each failed test, one in a line. */
export default async function* reportFailedFiles(events) {
  for await (const { type, data } of events) {
    // A file that ends before its first test, or runs too long, is reported by its name.
    if (type === 'test:fail') yield `${data.file ?? data.name}\n`;
  }
}
