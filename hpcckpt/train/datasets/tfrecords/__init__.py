"""Images in shards of TFRecords, with an index: written whole or not at all, and checked when they are opened.

``<directory>/index.json``                       what is in which file: counts, bytes, CRC32Cs
``<directory>/train-00000-of-00008.tfrecord`` …  ``tf.train.Example`` with ``image`` (bytes) and ``label``
``<directory>/valid-00000-of-00008.tfrecord`` …  if the data set has images for validation

The records are in random order, so a share for validation is taken off the end.
"""
