"""From a task to graphs whose nodes have shapes, dtypes and strides."""
