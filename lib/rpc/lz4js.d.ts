/** What is used here of lz4js, which comes without types. */
declare module 'lz4js' {
  /** @returns bytes written to `target`; 0 when nothing could be compressed */
  function compressBlock(
    source: Uint8Array,
    target: Uint8Array,
    start: number,
    length: number,
    hashTable: Uint32Array,
  ): number;
  const lz4: { compressBlock: typeof compressBlock };
  export default lz4;
}
